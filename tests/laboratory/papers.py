"""Papers, their authors, whom they cite and which genes they mention.

- ``paper_index`` (120,000 rows, by year): more of late; few venues have most; a doi says its topic; language, pages and
  abstract are sometimes NULL.
- ``author_index`` (70,000): more in the first cities; more than half have no orcid (NULL).
- ``paper_author`` (about 400,000): 1 to 30 a paper, none for the last 7 %; few authors have many.
- ``paper_cites`` (600,000): earlier papers only, the very first most of all; 1 % cite what is not in the index.
- ``gene_mention`` (90,000): few genes have most; 3 % have a P behind the symbol, which the catalog does not know.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.laboratory.columns import Tables, booleans, dates, integers, table
from tests.laboratory.draws import day, draw_of, numbered, shuffled, size, skewed, weighted
from tests.laboratory.texts import (
    CITIES,
    COUNTRIES,
    FIRST,
    LAST,
    TOPICS,
    VERBS,
    choice,
    digits,
    joined,
    passages,
    where,
)

VENUES = [
    f"{kind} {subject}"
    for kind in ("Journal of", "Annals of", "Acta", "Proc.")
    for subject in "Physics Genetics Data Ecology Astronomy Médecine Software Hydrology".split()
]


def tables(scale: float, symbols: Sequence[str]) -> Tables:
    """``symbols`` of the genes in their catalog."""
    papers, authors, written, cites, mentions = (
        size(rows, scale) for rows in (120_000, 70_000, 400_000, 600_000, 90_000)
    )

    draw = draw_of("paper_index")
    year = np.sort(1990 + (draw.beta(3, 1.3, papers) * 35).astype(int))
    topic = weighted(draw, 1 / np.arange(1, 19), papers)
    new_year = (year - 1970) * 365 + (year - 1969) // 4
    yield table(
        "paper_index",
        paper_id=integers(np.arange(papers) + 1),
        doi=joined("10.", digits(1000 + topic * 7), "/x.", digits(np.arange(papers) * 11 + 5)),
        paper_title=joined(choice(VERBS, draw.integers(0, 10, papers)), " ", choice(TOPICS, topic)),
        venue=choice(VENUES, skewed(draw, len(VENUES), papers, 2)),
        pub_year=integers(year),
        published=dates(new_year + draw.integers(0, 365, papers)),
        n_pages=integers(3 + draw.gamma(3, 4, papers), draw.random(papers) < 0.08),
        lang=choice(["en", "de", "fr", "es", None], weighted(draw, [90, 4, 3, 2, 1], papers)),
        abstract=where(draw.random(papers) < 0.85, passages(draw, papers, 5)),
    )

    draw = draw_of("author_index")
    city = weighted(draw, 1 / np.arange(1, 41) ** 0.8, authors)
    yield table(
        "author_index",
        author_id=integers(np.arange(authors) + 1),
        author_name=joined(
            choice(LAST, draw.integers(0, 26, authors)), ", ", choice(FIRST, draw.integers(0, 25, authors))
        ),
        orcid=where(
            draw.random(authors) < 0.45,
            joined("0000-", digits(draw.integers(1000, 9999, authors)), "-", digits(np.arange(authors), 8)),
        ),
        affiliation=joined(
            choice(["Universität ", "Institute of ", "École ", "Hospital "], draw.integers(0, 4, authors)),
            choice(CITIES, city),
        ),
        country=choice(COUNTRIES, city),
        joined_on=dates(day("1985-01-01") + draw.integers(0, 14_000, authors)),
        active=booleans(draw.random(authors) < 0.7),
    )

    draw = draw_of("paper_author")
    each = np.minimum(1 + draw.poisson(2.4, papers) + (draw.random(papers) < 0.01) * 20, 30)
    paper = np.repeat(np.arange(papers), each)[:written]
    written = len(paper)
    yield table(
        "paper_author",
        paper_id=integers(paper + 1),
        author_pos=integers(numbered(paper)),
        author_id=integers(shuffled(draw, authors, skewed(draw, authors, written, 2.4)) + 1),
        corresponding=booleans(draw.random(written) < 0.3),
    )

    draw = draw_of("paper_cites")
    more = int(cites * 1.2)  # of which some are the same
    citing = draw.integers(1, papers, more)
    cited = (citing * draw.random(more) ** np.where(draw.random(more) < 0.5, 0.4, 4)).astype(np.int64)
    unknown = draw.random(more) < 0.01
    pairs = np.unique(citing * (2 * papers) + np.where(unknown, papers + cited, cited))
    citing, cited = np.divmod(np.sort(draw.permutation(pairs)[:cites]), 2 * papers)
    cites = len(citing)
    yield table(
        "paper_cites",
        citing_id=integers(citing + 1),
        cited_id=integers(cited + 1),
        context_kind=choice(
            ["background", "method", "result", "critique", None], weighted(draw, [60, 20, 12, 3, 5], cites)
        ),
        n_times=integers(1 + skewed(draw, 9, cites, 4)),
    )

    draw = draw_of("gene_mention")
    genes = len(symbols)
    pairs = shuffled(draw, genes, skewed(draw, genes, mentions, 3)) * papers + draw.integers(0, papers, mentions)
    gene, paper = np.divmod(np.unique(pairs), papers)
    mentions = len(gene)
    symbol = choice(symbols, gene)
    yield table(
        "gene_mention",
        gene_symbol=pc.if_else(pa.array(draw.random(mentions) < 0.03), joined(symbol, "P"), symbol),
        paper_id=integers(paper + 1),
        mentions=integers(1 + skewed(draw, 40, mentions, 4)),
        in_title=booleans(draw.random(mentions) < 0.05),
    )
