"""Genes, samples of donors, the sites of variants, and the genotypes called at them.

- ``gene_catalog`` (12,000 rows): more genes on the first chromosomes, by position; a fifth without a description.
- ``biosample`` (6,000): several a donor; sex, tissue, age and body mass, which grows with it, are sometimes NULL.
- ``variant_site`` (250,000): few genes have many; 12 % have no gene and 2 % one that is not in the catalog; most are
  rare, and the clinical significance, more than half NULL, depends on the consequence.
- ``genotype_call`` (600,000): early samples have more, few variants have most; the dosage depends on the variant's
  frequency.
"""

from __future__ import annotations

import numpy as np

from tests.laboratory.columns import Tables, booleans, dates, doubles, integers, longs, table, times
from tests.laboratory.draws import day, draw_of, shuffled, size, skewed, weighted
from tests.laboratory.texts import choice, digits, joined, passages, where

CHROMOSOMES = (*map(str, range(1, 23)), "X", "Y", "MT")
BASES = ("A", "C", "G", "T")


def tables(scale: float) -> Tables:
    genes, samples, sites, calls = (size(rows, scale) for rows in (12_000, 6_000, 250_000, 600_000))

    draw = draw_of("gene_catalog")
    chromosome = np.sort(weighted(draw, [*range(25, 3, -1), 10, 1, 0.5], genes))
    start = np.zeros(genes, np.int64)
    for each in range(len(CHROMOSOMES)):
        on_it = chromosome == each
        start[on_it] = np.cumsum(draw.integers(500, 120_000, on_it.sum()))
    length = np.exp(draw.normal(9.5, 1.2, genes)).astype(np.int64) + 200
    stems = [letter + stem for letter in "ABCDEFGHKLMNPRSTZ" for stem in ("RB", "YP", "KT", "SLC", "orf", "ZNF")]
    symbol = joined(choice(stems, draw.integers(0, len(stems), genes)), digits(np.arange(genes) + 1))
    biotype = weighted(draw, [60, 20, 12, 5, 3], genes)
    yield table(
        "gene_catalog",
        gene_id=integers(np.arange(genes) + 1),
        symbol=symbol,
        chrom=choice(CHROMOSOMES, chromosome),
        start_pos=longs(start),
        end_pos=longs(start + length),
        strand=choice("+-", draw.integers(0, 2, genes)),
        biotype=choice(["protein_coding", "lncRNA", "pseudogene", "miRNA", "snoRNA"], biotype),
        description=where(draw.random(genes) < 0.8, passages(draw, genes, 6)),
    )

    draw = draw_of("biosample")
    age = np.clip(draw.normal(52, 17, samples), 1, 97).astype(int)
    sex = weighted(draw, [50, 46, 4], samples)
    body_mass = 20 + age / 15 + draw.normal(0, 3.5, samples)
    yield table(
        "biosample",
        sample_id=integers(np.arange(samples) + 1),
        donor_code=joined("D-", digits(skewed(draw, samples // 2, samples, 1.2), 5)),
        sex=choice(["F", "M", None], sex),
        cohort=choice(["baseline", "follow-up", "control", "pilot"], weighted(draw, [50, 25, 20, 5], samples)),
        tissue=choice(
            ["blood", "liver", "skin", "brain", "tumour", None], weighted(draw, [50, 15, 12, 8, 8, 7], samples)
        ),
        collected=dates(day("2015-01-01") + (draw.beta(3, 1.5, samples) * 3200).astype(int)),
        age_years=integers(age, draw.random(samples) < 0.06),
        consented=booleans(draw.random(samples) < 0.93),
        bmi=doubles(body_mass, 3, draw.random(samples) < 0.15),
    )

    draw = draw_of("variant_site")
    gene = shuffled(draw, genes, skewed(draw, genes, sites, 1.8))
    position = start[gene] + (draw.random(sites) * length[gene]).astype(np.int64)
    frequency = np.clip(draw.beta(0.35, 4, sites), 1e-5, 0.5)
    consequence = weighted(draw, [45, 22, 18, 8, 4, 2, 1], sites)
    dangling, outside = draw.random(sites) < 0.02, draw.random(sites) < 0.12
    reference = draw.integers(0, 4, sites)
    alternative = (reference + draw.integers(1, 4, sites)) % 4
    yield table(
        "variant_site",
        variant_id=longs(np.arange(sites) + 100_000_001),
        chrom=choice(CHROMOSOMES, chromosome[gene]),
        pos=longs(position),
        ref_allele=choice(BASES, reference),
        alt_allele=choice(
            [*BASES, "AT", "CGG"], np.where(draw.random(sites) < 0.05, draw.integers(4, 6, sites), alternative)
        ),
        qual=doubles(draw.gamma(4, 60, sites), 2),
        filter_status=choice(["PASS", "LowQual", "StrandBias"], weighted(draw, [88, 9, 3], sites)),
        gene_id=integers(np.where(dangling, genes + 5_000 + gene, gene + 1), outside),
        consequence=choice(
            "intron_variant synonymous missense utr_variant splice_region frameshift stop_gained".split(), consequence
        ),
        maf=doubles(frequency, 6),
        rsid=where(draw.random(sites) < 0.7, joined("rs", digits(np.arange(sites) * 37 + 1000))),
        clin_sig=choice(
            ["benign", "likely_benign", "uncertain", "pathogenic", None],
            np.where(
                consequence >= 5,
                weighted(draw, [5, 5, 20, 45, 25], sites),
                weighted(draw, [20, 10, 12, 1, 57], sites),
            ),
        ),
    )

    draw = draw_of("genotype_call")
    more = int(calls * 1.15)  # of which some are the same
    pairs = skewed(draw, samples, more, 1.3) * sites + shuffled(draw, sites, skewed(draw, sites, more, 3))
    sample, site = np.divmod(np.sort(draw.permutation(np.unique(pairs))[:calls]), sites)
    calls = len(site)
    depth = draw.poisson(28, calls)
    yield table(
        "genotype_call",
        sample_id=integers(sample + 1),
        variant_id=longs(site + 100_000_001),
        dosage=integers(draw.binomial(2, np.clip(frequency[site] * 3, 0, 1))),
        depth=integers(depth),
        gq=integers(np.clip(depth * 2 + draw.normal(20, 12, calls), 0, 99), draw.random(calls) < 0.03),
        phased=booleans(draw.random(calls) < 0.4),
        called_at=times(day("2021-03-01") * 86400 + sample * 9_000 + draw.integers(0, 8_000, calls)),
    )
