-- n01 star: shop revenue by category, country and quarter
SELECT p.category, c.country, date_trunc('quarter', o.ordered_at)::date AS quarter, count(*) AS sold,
    sum(l.qty * l.unit_price) AS revenue
FROM order_line l
JOIN shop_order o ON o.order_id = l.order_id
JOIN shop_customer c ON c.customer_id = o.customer_id
JOIN shop_product p ON p.product_id = l.product_id
WHERE o.status <> 'cancelled' AND o.ordered_at >= TIMESTAMP '2022-01-01' GROUP BY ALL ORDER BY ALL

-- n02 top-N per group: the three best products of each category
WITH sales AS (SELECT p.category, p.product_id, p.product_title, sum(l.qty * l.unit_price) AS revenue FROM order_line l
    JOIN shop_product p USING (product_id) WHERE NOT p.discontinued GROUP BY ALL)
SELECT category, product_id, product_title, revenue, rn
FROM (SELECT *, row_number() OVER (PARTITION BY category ORDER BY revenue DESC, product_id) AS rn FROM sales) t
WHERE rn <= 3 ORDER BY category, rn

-- n03 running sum and moving average of daily revenue
WITH daily AS (SELECT o.ordered_at::date AS day, sum(l.qty * l.unit_price) AS revenue FROM shop_order o
    JOIN order_line l ON l.order_id = o.order_id GROUP BY 1)
SELECT day, revenue, sum(revenue) OVER (ORDER BY day) AS running,
    avg(revenue) OVER (ORDER BY day ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS week_mean
FROM daily ORDER BY day

-- n04 cohorts: months since the first order
WITH firsts AS (SELECT customer_id, min(date_trunc('month', ordered_at))::date AS cohort_month FROM shop_order
    GROUP BY customer_id)
SELECT f.cohort_month, date_diff('month', f.cohort_month, o.ordered_at::date) AS age_months,
    count(DISTINCT o.customer_id) AS buyers, count(*) AS purchases
FROM shop_order o
JOIN firsts f USING (customer_id)
JOIN shop_customer c ON c.customer_id = o.customer_id
WHERE c.segment = 'consumer' GROUP BY 1, 2 ORDER BY 1, 2

-- n05 interval join: readings corrected by the calibration valid at that moment
SELECT s.country, r.sensor, count(*) AS n, avg(r.reading * k.gain + k.bias) AS corrected, avg(r.reading) AS raw
FROM station_reading r
JOIN calibration_run k ON k.station_id = r.station_id AND k.sensor = r.sensor AND r.read_at >= k.valid_from
    AND r.read_at < k.valid_to
JOIN weather_station s ON s.station_id = r.station_id
WHERE r.quality = 0 AND k.passed GROUP BY 1, 2 ORDER BY 1, 2

-- n06 ASOF: the last calibration begun before each reading of a few stations
SELECT r.reading_id, r.read_at, r.reading, k.calib_id, k.gain FROM station_reading r
ASOF JOIN calibration_run k ON k.station_id = r.station_id AND k.sensor = r.sensor AND r.read_at >= k.valid_from
WHERE r.station_id BETWEEN 100 AND 140 ORDER BY r.reading_id

-- n07 gaps: sensors of coastal stations that were silent for more than 150 hours
SELECT s.station_code, g.sensor, g.before, g.read_at AS after, g.hours
FROM (SELECT station_id, sensor, read_at, lag(read_at) OVER w AS before,
    date_diff('hour', lag(read_at) OVER w, read_at) AS hours
    FROM station_reading WINDOW w AS (PARTITION BY station_id, sensor ORDER BY read_at, reading_id)) g
JOIN weather_station s ON s.station_id = g.station_id
WHERE g.hours > 150 AND s.is_coastal ORDER BY g.hours DESC, s.station_code, g.sensor, g.read_at

-- n08 islands: longest runs of frost
WITH days AS (SELECT station_id, read_at::date AS day, min(reading) AS low FROM station_reading WHERE sensor = 'temp'
    GROUP BY 1, 2),
frost AS (SELECT station_id, day, day - (row_number() OVER (PARTITION BY station_id ORDER BY day))::int AS island
    FROM days WHERE low < 0)
SELECT s.station_name, f.station_id, min(f.day) AS began, count(*) AS days FROM frost f
JOIN weather_station s USING (station_id)
GROUP BY s.station_name, f.station_id, f.island HAVING count(*) >= 3
ORDER BY days DESC, f.station_id, began LIMIT 50

-- n09 percentiles of temperature by country
SELECT s.country, count(*) AS n, median(r.reading) AS med, quantile_cont(r.reading, 0.05) AS p05,
    quantile_cont(r.reading, 0.95) AS p95
FROM station_reading r
JOIN weather_station s ON r.station_id = s.station_id
WHERE r.sensor = 'temp' AND r.quality < 2 GROUP BY s.country ORDER BY s.country

-- n10 histogram: detections by band and half magnitude
SELECT e.filter_band, floor(d.mag_ab * 2)::int AS bin, count(*) AS n FROM source_detection d
JOIN exposure_log e ON e.exposure_id = d.exposure_id
WHERE e.usable AND d.flags = 0 AND d.mag_ab IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2

-- n11 pivot by CASE: colours of quasars
SELECT s.source_id, s.redshift, avg(CASE WHEN e.filter_band = 'g' THEN d.flux END) AS g,
    avg(CASE WHEN e.filter_band = 'r' THEN d.flux END) AS r, avg(CASE WHEN e.filter_band = 'i' THEN d.flux END) AS i,
    count(*) AS n
FROM sky_source s
JOIN source_detection d ON d.source_id = s.source_id
JOIN exposure_log e ON e.exposure_id = d.exposure_id
WHERE s.obj_class = 'QSO' AND s.redshift > 1.5 GROUP BY s.source_id, s.redshift HAVING count(*) >= 5
ORDER BY s.source_id

-- n12 count distinct: carriers of rare damaging variants by gene
SELECT g.symbol, g.chrom, count(DISTINCT v.variant_id) AS variants, count(DISTINCT c.sample_id) AS carriers
FROM gene_catalog g
JOIN variant_site v ON v.gene_id = g.gene_id
JOIN genotype_call c ON c.variant_id = v.variant_id
WHERE v.consequence IN ('frameshift', 'stop_gained', 'splice_region') AND v.maf < 0.01 AND c.dosage > 0
GROUP BY g.symbol, g.chrom ORDER BY carriers DESC, g.symbol LIMIT 40

-- n13 grouping sets: pieces sold by category and channel
SELECT p.category, o.channel, grouping(p.category, o.channel) AS level, count(*) AS n, sum(l.qty) AS pieces
FROM order_line l
JOIN shop_order o USING (order_id)
JOIN shop_product p USING (product_id)
GROUP BY GROUPING SETS ((p.category, o.channel), (p.category), (o.channel), ())
ORDER BY level, p.category, o.channel

-- n14 rollup: authorships and papers by country and year
SELECT a.country, p.pub_year, count(*) AS authorships, count(DISTINCT p.paper_id) AS papers
FROM paper_author w
JOIN author_index a ON a.author_id = w.author_id
JOIN paper_index p ON p.paper_id = w.paper_id
WHERE p.pub_year >= 2018 GROUP BY ROLLUP (a.country, p.pub_year)
ORDER BY a.country NULLS LAST, p.pub_year NULLS LAST

-- n15 anti join: papers that nobody cites, by year
SELECT p.pub_year, count(*) AS uncited, avg(p.n_pages) AS pages FROM paper_index p
WHERE NOT EXISTS (SELECT 1 FROM paper_cites c WHERE c.cited_id = p.paper_id) GROUP BY p.pub_year
ORDER BY p.pub_year

-- n16 NOT IN: readers of the newsletter who never returned anything, by country
SELECT c.country, count(*) AS loyal FROM shop_customer c
WHERE c.customer_id NOT IN (SELECT o.customer_id FROM shop_order o JOIN order_line l ON l.order_id = o.order_id
    WHERE l.was_returned) AND c.newsletter
GROUP BY 1 ORDER BY 2 DESC, 1

-- n17 semi join: stations used as the site of a bad night
SELECT s.station_id, s.station_name, s.elevation_m FROM weather_station s
WHERE EXISTS (SELECT 1 FROM exposure_log e WHERE e.site_station = s.station_id AND e.seeing > 2)
ORDER BY s.station_id

-- n18 self join: co-authors
SELECT a1.author_name AS one, a2.author_name AS other, w1.author_id AS one_id, w2.author_id AS other_id,
    count(*) AS together
FROM paper_author w1
JOIN paper_author w2 ON w2.paper_id = w1.paper_id AND w2.author_id > w1.author_id
JOIN author_index a1 ON a1.author_id = w1.author_id
JOIN author_index a2 ON a2.author_id = w2.author_id
GROUP BY 1, 2, 3, 4 HAVING count(*) >= 3 ORDER BY together DESC, one_id, other_id LIMIT 100

-- n19 self join: referrals and what the referred spend
SELECT r.segment AS referrer_segment, c.segment, count(DISTINCT c.customer_id) AS customers,
    sum(l.qty * l.unit_price) AS spent
FROM shop_customer c
JOIN shop_customer r ON r.customer_id = c.referrer_id
JOIN shop_order o ON o.customer_id = c.customer_id
JOIN order_line l ON l.order_id = o.order_id
GROUP BY 1, 2 ORDER BY 1, 2

-- n20 interval join: variants inside genes by position, on one chromosome
SELECT g.symbol, count(*) AS variants, sum(CASE WHEN v.gene_id = g.gene_id THEN 1 ELSE 0 END) AS annotated
FROM gene_catalog g
JOIN variant_site v ON v.chrom = g.chrom AND v.pos BETWEEN g.start_pos AND g.end_pos
WHERE g.chrom = '21' AND g.biotype = 'protein_coding' GROUP BY g.symbol ORDER BY variants DESC, g.symbol

-- n21 inequality join: pairs of overlapping genes on opposite strands
SELECT a.symbol AS plus_gene, b.symbol AS minus_gene,
    least(a.end_pos, b.end_pos) - greatest(a.start_pos, b.start_pos) AS overlap
FROM gene_catalog a
JOIN gene_catalog b ON a.chrom = b.chrom AND a.start_pos < b.end_pos AND b.start_pos < a.end_pos
WHERE a.strand = '+' AND b.strand = '-' AND a.chrom IN ('X', '22', '19')
ORDER BY overlap DESC, plus_gene, minus_gene LIMIT 60

-- n22 UNION ALL of several tables: activity by month
SELECT month, kind, count(*) AS n
FROM (SELECT date_trunc('month', ordered_at)::date AS month, 'order' AS kind FROM shop_order
    UNION ALL SELECT date_trunc('month', started)::date, 'exposure' FROM exposure_log
    UNION ALL SELECT date_trunc('month', read_at)::date, 'reading' FROM station_reading
    UNION ALL SELECT date_trunc('month', published)::date, 'paper' FROM paper_index
    UNION ALL SELECT date_trunc('month', collected)::date, 'sample' FROM biosample) t
WHERE month BETWEEN DATE '2022-01-01' AND DATE '2024-12-31' GROUP BY 1, 2 ORDER BY 1, 2

-- n23 EXCEPT: cities with customers, but without a coastal weather station or an active author at a German university
SELECT city FROM shop_customer
EXCEPT SELECT city FROM weather_station WHERE is_coastal
EXCEPT SELECT substr(affiliation, 13) FROM author_index
WHERE affiliation LIKE 'Universit%' AND active AND country = 'DE' ORDER BY 1

-- n24 INTERSECT: countries of authors, of resellers and of stations above 1500 m
SELECT country FROM author_index
INTERSECT SELECT country FROM shop_customer WHERE segment = 'reseller'
INTERSECT SELECT country FROM weather_station WHERE elevation_m > 1500 ORDER BY 1

-- n25 correlated scalar subqueries: citations of a venue's papers of one year, and their longest author name
SELECT p.paper_id, p.paper_title, (SELECT count(*) FROM paper_cites c WHERE c.cited_id = p.paper_id) AS cited,
    (SELECT max(a.h_hint) FROM (SELECT author_id AS aid, length(author_name) AS h_hint FROM author_index) a
    JOIN paper_author w ON w.author_id = a.aid WHERE w.paper_id = p.paper_id) AS longest_name
FROM paper_index p WHERE p.venue = 'Annals of Astronomy' AND p.pub_year = 2019
ORDER BY cited DESC, p.paper_id LIMIT 30

-- n26 LATERAL: the last two orders of the education customers of one city
SELECT c.customer_id, c.full_name, o.order_id, o.ordered_at FROM shop_customer c,
LATERAL (SELECT order_id, ordered_at FROM shop_order s WHERE s.customer_id = c.customer_id
    ORDER BY ordered_at DESC, order_id DESC LIMIT 2) o
WHERE c.city = 'Reykjavík' AND c.segment = 'education' ORDER BY c.customer_id, o.order_id

-- n27 CTE used twice: products that sell more than twice the mean of their category
WITH s AS (SELECT p.category, p.product_id, sum(l.qty) AS pieces FROM shop_product p
    LEFT JOIN order_line l ON l.product_id = p.product_id GROUP BY 1, 2)
SELECT s.category, count(*) AS above, max(s.pieces) AS most FROM s
JOIN (SELECT category, avg(pieces) AS mean FROM s GROUP BY category) m ON m.category = s.category
WHERE s.pieces > 2 * m.mean GROUP BY s.category ORDER BY s.category

-- n28 LIKE on long texts: abstracts about the Poincaré map, by venue
SELECT p.venue, count(*) AS n, sum(length(p.abstract)) AS letters FROM paper_index p
WHERE p.abstract LIKE '%Poincaré map correlates%' AND p.abstract NOT LIKE '%season%' GROUP BY p.venue
ORDER BY n DESC, p.venue

-- n29 ILIKE and a join on a text key: genes that papers about genomes mention
SELECT g.symbol, g.biotype, sum(m.mentions) AS mentions, count(*) AS papers FROM gene_catalog g
JOIN gene_mention m ON m.gene_symbol = g.symbol
JOIN paper_index p ON p.paper_id = m.paper_id
WHERE p.paper_title ILIKE '%GENOME%' AND g.description ILIKE '%cohorts%' GROUP BY 1, 2
HAVING sum(m.mentions) > 20 ORDER BY mentions DESC, g.symbol LIMIT 50

-- n30 regexp filter and extraction: genes by the stem of their symbol, with their pathogenic variants
SELECT regexp_extract(g.symbol, '^([A-Z]+)', 1) AS stem, count(DISTINCT g.gene_id) AS genes,
    count(v.variant_id) AS variants
FROM gene_catalog g
LEFT JOIN variant_site v ON v.gene_id = g.gene_id AND v.clin_sig = 'pathogenic'
WHERE regexp_matches(g.symbol, 'ZNF[0-9]*[05]$') GROUP BY 1 ORDER BY 1

-- n31 calendar: all days of a year with their exposures, and the humidity at the sites
WITH days AS (SELECT unnest(generate_series(DATE '2023-01-01', DATE '2023-12-31', INTERVAL 1 DAY))::date AS day),
hum AS (SELECT r.read_at::date AS day, avg(r.reading) AS humidity FROM station_reading r
    JOIN weather_station s ON s.station_id = r.station_id
    WHERE r.sensor = 'hum' AND s.station_id IN (SELECT site_station FROM exposure_log) GROUP BY 1),
nights AS (SELECT started::date AS day, count(*) AS exposures, avg(seeing) AS seeing FROM exposure_log GROUP BY 1)
SELECT d.day, coalesce(n.exposures, 0) AS exposures, n.seeing, h.humidity FROM days d
LEFT JOIN nights n ON n.day = d.day
LEFT JOIN hum h ON h.day = d.day
ORDER BY d.day

-- n32 string functions: domains of mail addresses and initials
SELECT lower(split_part(email, '@', 2)) AS domain, upper(left(full_name, 1)) AS initial, count(*) AS n,
    max(length(full_name)) AS longest
FROM shop_customer WHERE email IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2

-- n33 NULL handling: completeness of the samples
SELECT coalesce(b.tissue, '(unknown)') AS tissue, coalesce(b.sex, '?') AS sex, count(*) AS n,
    count(b.age_years) AS with_age, count(b.bmi) AS with_bmi, avg(coalesce(b.bmi, 25)) AS bmi,
    count(*) FILTER (WHERE b.age_years IS NULL AND b.bmi IS NULL) AS neither
FROM biosample b GROUP BY 1, 2 ORDER BY 1, 2

-- n34 large result: all good temperature readings with their station's place
SELECT r.reading_id, s.station_code, s.city, r.read_at, r.reading FROM station_reading r
JOIN weather_station s ON s.station_id = r.station_id
WHERE r.sensor = 'temp' AND r.quality = 0

-- n35 large result: detections without flags above five errors
SELECT detection_id, source_id, flux, flux_err FROM source_detection
WHERE flux > 5 * flux_err AND flags = 0

-- n36 point query: one order
SELECT * FROM shop_order WHERE order_id = 1030001

-- n37 point query: four orders with their lines, customers and products
SELECT o.order_id, o.ordered_at, c.full_name, l.line_no, p.product_title, l.qty FROM shop_order o
JOIN shop_customer c ON c.customer_id = o.customer_id
JOIN order_line l ON l.order_id = o.order_id
JOIN shop_product p ON p.product_id = l.product_id
WHERE o.order_id IN (1000004, 1015001, 1050002, 1090001) ORDER BY 1, 4

-- n38 point query: one paper and its authors
SELECT p.doi, p.paper_title, w.author_pos, a.author_name, a.affiliation FROM paper_index p
JOIN paper_author w USING (paper_id)
JOIN author_index a USING (author_id)
WHERE p.paper_id = 7777 ORDER BY w.author_pos

-- n39 small to large with a selective filter: detections of the brightest supernovae
SELECT s.source_id, s.mag_r, d.detection_id, e.started, e.filter_band, d.mag_ab FROM sky_source s
JOIN source_detection d ON d.source_id = s.source_id
JOIN exposure_log e ON e.exposure_id = d.exposure_id
WHERE s.obj_class = 'SN' AND s.mag_r < 17 ORDER BY s.source_id, e.started, d.detection_id

-- n40 join on an expression: mentions of genes with and without a P behind the symbol
SELECT g.biotype, m.gene_symbol IS DISTINCT FROM g.symbol AS suffixed, count(*) AS pairs, sum(m.mentions) AS mentions,
    count(DISTINCT g.gene_id) AS genes
FROM gene_mention m
JOIN gene_catalog g ON g.symbol = rtrim(m.gene_symbol, 'P')
JOIN paper_index p ON p.paper_id = m.paper_id
WHERE split_part(p.doi, '/', 1) <> '10.1000' GROUP BY 1, 2 ORDER BY 1, 2

-- n41 join on an expression: cities of customers with much credit that have an open station
SELECT lower(c.city) AS place, count(DISTINCT c.customer_id) AS customers, count(DISTINCT s.station_id) AS stations
FROM shop_customer c
JOIN weather_station s ON lower(s.city) = lower(c.city) AND s.closed_on IS NULL
WHERE c.credit_limit > 6000 GROUP BY 1 ORDER BY 1

-- n42 ORDER BY LIMIT over a large table: the strongest winds
SELECT reading_id, station_id, read_at, reading FROM station_reading WHERE sensor = 'wind'
ORDER BY reading DESC NULLS LAST, reading_id LIMIT 100

-- n43 ORDER BY LIMIT after a join: the most expensive order lines
SELECT l.order_id, l.line_no, p.product_title, c.full_name, l.qty * l.unit_price AS amount
FROM order_line l
JOIN shop_order o ON o.order_id = l.order_id
JOIN shop_customer c ON c.customer_id = o.customer_id
JOIN shop_product p ON p.product_id = l.product_id
ORDER BY amount DESC, l.order_id, l.line_no LIMIT 25

-- n44 HAVING over two aggregates: sources that were once much brighter than on average
SELECT d.source_id, count(*) AS n, avg(d.flux) AS mean, max(d.flux) - min(d.flux) AS spread
FROM source_detection d GROUP BY d.source_id HAVING count(*) >= 30 AND max(d.flux) > 1.25 * avg(d.flux)
ORDER BY n DESC, d.source_id LIMIT 200

-- n45 QUALIFY: the exposure of each field and band with the most detections
SELECT e.field_name, e.filter_band, e.exposure_id, e.started, n.detections FROM exposure_log e
JOIN (SELECT exposure_id, count(*) AS detections FROM source_detection GROUP BY 1) n USING (exposure_id)
QUALIFY row_number() OVER (PARTITION BY e.field_name, e.filter_band ORDER BY n.detections DESC, e.exposure_id) = 1
ORDER BY 1, 2

-- n46 string_agg with ORDER BY: the authors of German papers of one year
SELECT p.paper_id, p.paper_title, string_agg(a.author_name, '; ' ORDER BY w.author_pos) AS authors
FROM paper_index p
JOIN paper_author w ON w.paper_id = p.paper_id
JOIN author_index a ON a.author_id = w.author_id
WHERE p.pub_year = 2021 AND p.lang = 'de' GROUP BY 1, 2 ORDER BY 1

-- n47 list aggregate: light curves of supernovae
SELECT s.source_id, list(d.mag_ab::double ORDER BY e.started, d.detection_id) AS curve, count(*) AS n
FROM sky_source s
JOIN source_detection d ON d.source_id = s.source_id
JOIN exposure_log e ON e.exposure_id = d.exposure_id
WHERE s.variable_flag AND s.obj_class = 'SN' AND d.mag_ab IS NOT NULL GROUP BY s.source_id
HAVING count(*) > 8 ORDER BY s.source_id

-- n48 statistics: correlation of altitude and temperature by month
SELECT extract(month FROM r.read_at) AS month, count(*) AS n, corr(r.reading, s.elevation_m) AS correlation,
    regr_slope(r.reading, s.elevation_m) AS slope, stddev_samp(r.reading) AS sd
FROM station_reading r
JOIN weather_station s ON s.station_id = r.station_id
WHERE r.sensor = 'temp' AND r.reading IS NOT NULL AND s.elevation_m IS NOT NULL GROUP BY 1 ORDER BY 1

-- n49 statistics: regression of body mass on age by sex and cohort
SELECT sex, cohort, regr_slope(bmi, age_years) AS slope, regr_intercept(bmi, age_years) AS intercept,
    regr_r2(bmi, age_years) AS r2, regr_count(bmi, age_years) AS n
FROM biosample WHERE consented GROUP BY sex, cohort HAVING regr_count(bmi, age_years) > 20
ORDER BY sex, cohort

-- n50 allele frequencies observed against declared
SELECT v.consequence, least(floor(v.maf * 20)::int, 9) AS bin, count(*) AS sites, avg(o.freq) AS observed,
    avg(v.maf) AS declared, stddev_samp(o.freq) AS spread
FROM variant_site v
JOIN (SELECT variant_id, sum(dosage) / (2.0 * count(*)) AS freq, count(*) AS n FROM genotype_call WHERE depth >= 15
    GROUP BY variant_id) o ON o.variant_id = v.variant_id
WHERE o.n >= 3 GROUP BY 1, 2 HAVING count(*) >= 5 ORDER BY 1, 2

-- n51 seven tables: genes in papers by authors of one country, with their pathogenic variants' carriers
SELECT g.symbol, count(DISTINCT p.paper_id) AS papers, count(DISTINCT a.author_id) AS authors,
    count(DISTINCT c.sample_id) AS carriers
FROM gene_catalog g
JOIN gene_mention m ON m.gene_symbol = g.symbol
JOIN paper_index p ON p.paper_id = m.paper_id
JOIN paper_author w ON w.paper_id = p.paper_id
JOIN author_index a ON a.author_id = w.author_id
JOIN variant_site v ON v.gene_id = g.gene_id
JOIN genotype_call c ON c.variant_id = v.variant_id
WHERE a.country = 'IS' AND v.clin_sig = 'pathogenic' AND c.dosage > 0 AND p.pub_year >= 2015
GROUP BY g.symbol ORDER BY carriers DESC, g.symbol LIMIT 30

-- n52 wind at the site on the day of each exposure
SELECT e.exposure_id, e.started, e.seeing, w.wind FROM exposure_log e
JOIN (SELECT station_id, date_trunc('day', read_at)::date AS day, avg(reading) AS wind FROM station_reading
    WHERE sensor = 'wind' GROUP BY 1, 2) w ON w.station_id = e.site_station AND w.day = e.started::date
WHERE e.seeing IS NOT NULL ORDER BY e.exposure_id

-- n53 ASOF LEFT: the last humidity at the site before each exposure in one band, if there is any
SELECT e.exposure_id, e.started, r.read_at, r.reading FROM exposure_log e
ASOF LEFT JOIN (SELECT station_id, read_at, max(reading) AS reading FROM station_reading
    WHERE sensor = 'hum' AND quality = 0 AND reading IS NOT NULL GROUP BY station_id, read_at) r
    ON r.station_id = e.site_station AND e.started >= r.read_at
WHERE e.filter_band = 'z' ORDER BY e.exposure_id

-- n54 lag: days between a customer's orders, by segment
SELECT c.segment, count(gap) AS n, avg(gap) AS mean_days, median(gap) AS median_days, max(gap) AS longest
FROM (SELECT customer_id, date_diff('day', lag(ordered_at) OVER (PARTITION BY customer_id ORDER BY ordered_at,
    order_id), ordered_at) AS gap FROM shop_order WHERE status IN ('shipped', 'returned')) g
JOIN shop_customer c USING (customer_id)
GROUP BY 1 ORDER BY 1

-- n55 rank and share: brands' part of their category
SELECT category, brand, revenue, rank() OVER (PARTITION BY category ORDER BY revenue DESC) AS place,
    revenue::double / sum(revenue::double) OVER (PARTITION BY category) AS share
FROM (SELECT p.category, p.brand, sum(l.qty * l.unit_price) AS revenue FROM order_line l
    JOIN shop_product p ON p.product_id = l.product_id WHERE l.discount IS NOT NULL GROUP BY 1, 2) t
QUALIFY place <= 5 ORDER BY category, place, brand

-- n56 ntile: customers in ten parts by what they spend
WITH spent AS (SELECT o.customer_id, sum(l.qty * l.unit_price) AS total FROM shop_order o
    JOIN order_line l USING (order_id) WHERE o.status = 'shipped' GROUP BY 1),
parts AS (SELECT customer_id, total, ntile(10) OVER (ORDER BY total DESC, customer_id) AS part FROM spent)
SELECT part, count(*) AS customers, sum(total) AS revenue, min(total) AS least, count(c.customer_id) AS known
FROM parts
LEFT JOIN shop_customer c USING (customer_id)
GROUP BY part ORDER BY part

-- n57 full outer join: customers of orders who do not exist, and customers without orders
SELECT count(*) FILTER (WHERE c.customer_id IS NULL) AS unknown,
    count(*) FILTER (WHERE o.customer_id IS NULL) AS without_orders, count(*) AS all_rows
FROM (SELECT customer_id, count(*) AS n FROM shop_order GROUP BY 1) o
FULL JOIN shop_customer c ON c.customer_id = o.customer_id

-- n58 most cited authors, with self citations left out
SELECT a.author_id, a.author_name, a.country, count(*) AS citations FROM paper_cites q
JOIN paper_author w ON w.paper_id = q.cited_id
JOIN author_index a ON a.author_id = w.author_id
WHERE NOT EXISTS (SELECT 1 FROM paper_author s WHERE s.paper_id = q.citing_id AND s.author_id = w.author_id)
    AND q.context_kind = 'method'
GROUP BY 1, 2, 3 ORDER BY citations DESC, a.author_id LIMIT 30

-- n59 h-index of active authors
WITH cited AS (SELECT cited_id, count(*) AS n FROM paper_cites GROUP BY cited_id),
ranked AS (SELECT w.author_id, c.n, row_number() OVER (PARTITION BY w.author_id ORDER BY c.n DESC, c.cited_id) AS rn
    FROM paper_author w JOIN cited c ON c.cited_id = w.paper_id)
SELECT a.author_name, r.author_id, max(r.rn) AS h FROM ranked r
JOIN author_index a ON a.author_id = r.author_id
WHERE r.n >= r.rn AND a.active GROUP BY 1, 2 ORDER BY h DESC, r.author_id LIMIT 40

-- n60 self join: venues two steps away from one venue in the citation graph
SELECT p2.venue, count(DISTINCT q2.cited_id) AS reached FROM paper_index p
JOIN paper_cites q1 ON q1.citing_id = p.paper_id
JOIN paper_cites q2 ON q2.citing_id = q1.cited_id
JOIN paper_index p2 ON p2.paper_id = q2.cited_id
WHERE p.venue = 'Proc. Hydrology' AND p.pub_year >= 2020 GROUP BY p2.venue
ORDER BY reached DESC, p2.venue

-- n61 recursive: what a paper rests on, three steps deep
WITH RECURSIVE rests(paper, depth) AS (SELECT 11900, 0 UNION SELECT c.cited_id, r.depth + 1 FROM rests r
    JOIN paper_cites c ON c.citing_id = r.paper WHERE r.depth < 3)
SELECT r.depth, count(DISTINCT r.paper) AS papers, min(p.pub_year) AS oldest FROM rests r
JOIN paper_index p ON p.paper_id = r.paper
GROUP BY r.depth ORDER BY r.depth

-- n62 DISTINCT ON: newest calibration of each sensor in one country
SELECT DISTINCT ON (k.station_id, k.sensor) k.station_id, s.station_name, k.sensor, k.calib_id, k.valid_from,
    k.technician
FROM calibration_run k
JOIN weather_station s ON s.station_id = k.station_id
WHERE s.country = 'NO' ORDER BY k.station_id, k.sensor, k.valid_from DESC, k.calib_id

-- n63 technicians whose calibrations drift most
SELECT coalesce(k.technician, '(none)') AS technician, count(DISTINCT k.station_id) AS stations, count(*) AS runs,
    avg(abs(k.gain - 1)) AS drift, stddev_pop(k.bias) AS bias_sd, avg(k.passed::int) AS passed
FROM calibration_run k
JOIN weather_station s ON s.station_id = k.station_id
WHERE s.elevation_m > 300 GROUP BY 1 ORDER BY drift DESC, 1

-- n64 anti join on an interval: stations with many humidity readings without a valid calibration
SELECT s.station_code, count(*) AS naked FROM station_reading r
JOIN weather_station s ON s.station_id = r.station_id
WHERE r.sensor = 'hum' AND NOT EXISTS (SELECT 1 FROM calibration_run k WHERE k.station_id = r.station_id
    AND k.sensor = r.sensor AND r.read_at >= k.valid_from AND r.read_at < k.valid_to)
GROUP BY 1 HAVING count(*) > 30 ORDER BY naked DESC, 1

-- n65 baskets: product categories bought together
WITH b AS (SELECT DISTINCT l.order_id, p.category FROM order_line l JOIN shop_product p ON p.product_id = l.product_id)
SELECT x.category AS one, y.category AS other, count(*) AS orders FROM b x
JOIN b y ON y.order_id = x.order_id AND y.category > x.category
GROUP BY 1, 2 ORDER BY orders DESC, 1, 2

-- n66 price against list price by category
SELECT p.category, count(*) AS n, avg(l.unit_price / p.list_price) AS mean_ratio,
    min(l.unit_price / p.list_price) AS lowest,
    sum(CASE WHEN l.unit_price::double / p.list_price::double < 0.85 THEN l.qty ELSE 0 END) AS cheap_pieces
FROM order_line l
JOIN shop_product p ON p.product_id = l.product_id
WHERE p.list_price > 20 GROUP BY 1 ORDER BY 1

-- n67 days until orders are shipped, by city and weekday
SELECT o.ship_city, dayofweek(o.ordered_at) AS weekday, count(*) AS n, avg(o.shipped_on - o.ordered_at::date) AS days,
    count(*) FILTER (WHERE o.shipped_on > o.ordered_at::date + 9) AS late
FROM shop_order o WHERE o.shipped_on IS NOT NULL GROUP BY 1, 2 HAVING count(*) > 100 ORDER BY 1, 2

-- n68 left join with a derived table: what orders with each coupon amount to, by channel
SELECT coalesce(o.coupon, 'none') AS coupon, o.channel, count(*) AS orders, avg(t.amount) AS mean_amount,
    median(t.amount::double) AS median_amount, count(t.amount) AS with_lines
FROM shop_order o
LEFT JOIN (SELECT order_id, sum(qty * unit_price * (1 - coalesce(discount, 0))) AS amount FROM order_line
    GROUP BY order_id) t ON t.order_id = o.order_id
GROUP BY 1, 2 ORDER BY 1, 2

-- n69 variable sources by chi-square and class
SELECT s.obj_class, count(*) AS sources, sum((t.chi > 3)::int) AS variable, avg(t.chi) AS mean_chi
FROM sky_source s
JOIN (SELECT source_id, count(*) AS n, var_samp(flux) / avg(flux_err * flux_err) AS chi FROM source_detection
    WHERE flags = 0 GROUP BY source_id HAVING count(*) >= 5) t ON t.source_id = s.source_id
GROUP BY s.obj_class ORDER BY s.obj_class NULLS LAST

-- n70 a cone on the sky: sources near a place, by survey and class
SELECT survey, obj_class, count(*) AS n, avg(mag_r) AS mag FROM sky_source
WHERE dec_deg BETWEEN 20 AND 32 AND ra_deg BETWEEN 150 AND 170
    AND degrees(acos(least(1, sin(radians(dec_deg)) * sin(radians(26))
    + cos(radians(dec_deg)) * cos(radians(26)) * cos(radians(ra_deg - 160))))) < 5
GROUP BY 1, 2 ORDER BY 1, 2

-- n71 inequality self join: quasars and the galaxies shortly east of them in the same band of declination
SELECT a.source_id AS one, b.source_id AS other, abs(a.mag_r - b.mag_r) AS difference FROM sky_source a
JOIN sky_source b ON floor(a.dec_deg * 2) = floor(b.dec_deg * 2) AND b.ra_deg > a.ra_deg AND b.ra_deg < a.ra_deg + 0.5
WHERE a.obj_class = 'QSO' AND b.obj_class = 'GALAXY' ORDER BY one, other

-- n72 observers: exposures without a remark about noise, seconds a night, detections
SELECT e.observer, count(DISTINCT e.exposure_id) AS exposures,
    sum(e.exp_seconds) / count(DISTINCT e.started::date) AS per_night, sum(n.detections) AS detections
FROM exposure_log e
LEFT JOIN (SELECT exposure_id, count(*) AS detections FROM source_detection WHERE NOT deblended GROUP BY 1) n
    ON n.exposure_id = e.exposure_id
WHERE e.remarks IS NULL OR e.remarks NOT LIKE '%noise%' GROUP BY 1 ORDER BY detections DESC, 1

-- n73 IN with a subquery and with tuples: calls at sites with a strand bias
SELECT b.cohort, b.tissue, count(*) AS calls, avg(c.gq) AS quality FROM genotype_call c
JOIN biosample b ON b.sample_id = c.sample_id
WHERE c.variant_id IN (SELECT variant_id FROM variant_site WHERE filter_status = 'StrandBias' AND qual < 100)
    AND (b.sex, b.cohort) IN (('F', 'baseline'), ('M', 'control'), ('F', 'follow-up'))
GROUP BY 1, 2 ORDER BY 1, 2 NULLS LAST

-- n74 case and control: dosage by variant
SELECT v.variant_id, v.rsid, v.consequence, avg(CASE WHEN b.cohort = 'control' THEN c.dosage END) AS control,
    avg(CASE WHEN b.cohort <> 'control' THEN c.dosage END) AS cases, count(*) AS n
FROM genotype_call c
JOIN biosample b ON b.sample_id = c.sample_id
JOIN variant_site v ON v.variant_id = c.variant_id
WHERE v.filter_status = 'PASS' AND b.tissue = 'blood' AND b.consented GROUP BY 1, 2, 3
HAVING count(*) >= 20 ORDER BY n DESC, v.variant_id LIMIT 200

-- n75 donors with several samples: first against last
WITH b AS (SELECT donor_code, sample_id, collected, bmi, row_number() OVER (PARTITION BY donor_code ORDER BY collected,
    sample_id) AS f, row_number() OVER (PARTITION BY donor_code ORDER BY collected DESC, sample_id DESC) AS l
    FROM biosample)
SELECT x.donor_code, x.collected AS first_day, y.collected AS last_day, y.bmi - x.bmi AS change, n.calls
FROM b x
JOIN b y ON y.donor_code = x.donor_code AND y.l = 1
JOIN (SELECT sample_id, count(*) AS calls FROM genotype_call WHERE dosage = 2 GROUP BY 1) n ON n.sample_id = y.sample_id
WHERE x.f = 1 AND y.sample_id <> x.sample_id ORDER BY 1

-- n76 large result: all order lines of one year with names
SELECT l.order_id, l.line_no, c.country, p.sku, l.qty, l.unit_price, l.discount FROM order_line l
JOIN shop_order o ON o.order_id = l.order_id
JOIN shop_customer c ON c.customer_id = o.customer_id
JOIN shop_product p ON p.product_id = l.product_id
WHERE o.ordered_at >= TIMESTAMP '2023-01-01' AND o.ordered_at < TIMESTAMP '2024-01-01'

-- n77 large result: edges of the citation graph with years
SELECT q.citing_id, q.cited_id, p.pub_year AS citing_year, c.pub_year AS cited_year, q.context_kind
FROM paper_cites q
JOIN paper_index p ON p.paper_id = q.citing_id
LEFT JOIN paper_index c ON c.paper_id = q.cited_id

-- n78 year against previous year by venue
WITH y AS (SELECT venue, pub_year, count(*) AS n FROM paper_index WHERE lang = 'en' OR lang IS NULL GROUP BY 1, 2)
SELECT now_.venue, now_.pub_year, now_.n, before.n AS previous, now_.n::double / before.n - 1 AS growth
FROM y now_
LEFT JOIN y before ON before.venue = now_.venue AND before.pub_year = now_.pub_year - 1
WHERE now_.pub_year > 2005 ORDER BY 1, 2

-- n79 anomalies: readings 3.5 deviations from their sensor's mean of the month
WITH m AS (SELECT station_id, sensor, date_trunc('month', read_at)::date AS month, avg(reading) AS mu,
    stddev_samp(reading) AS sd FROM station_reading GROUP BY 1, 2, 3 HAVING count(reading) > 20)
SELECT s.station_code, r.sensor, r.reading_id, r.read_at, (r.reading - m.mu) / m.sd AS sigma
FROM station_reading r
JOIN m ON m.station_id = r.station_id AND m.sensor = r.sensor AND m.month = date_trunc('month', r.read_at)::date
JOIN weather_station s ON s.station_id = r.station_id
WHERE abs(r.reading - m.mu) > 3.5 * m.sd ORDER BY abs(sigma) DESC, r.reading_id LIMIT 200

-- n80 everything small at once: an overview of the catalogues
SELECT 'genes' AS what, biotype AS part, count(*) AS n, max(length(description)) AS longest
FROM gene_catalog GROUP BY 2
UNION ALL SELECT 'products', category, count(*), max(length(blurb)) FROM shop_product
WHERE NOT discontinued GROUP BY 2
UNION ALL SELECT 'exposures', filter_band, count(*), max(length(remarks)) FROM exposure_log GROUP BY 2
UNION ALL SELECT 'stations', country, count(*), max(length(station_name)) FROM weather_station
WHERE closed_on IS NULL GROUP BY 2 ORDER BY 1, 2
