"""A shop: customers, products, orders and their lines.

- ``shop_customer`` (80,000 rows): more in the first cities; a quarter has a referrer (earlier, or the same customer);
  the credit limit is NULL for 40 %, the e-mail address for 10 %.
- ``shop_product`` (9,000): few brands have most; the weight is NULL for 10 %; all have a long text.
- ``shop_order`` (320,000, by time): few customers have most; 0.3 % are of a customer who does not exist; ``shipped_on``
  is NULL for what is open or cancelled, the coupon for 80 %.
- ``order_line`` (about 1,000,000): 1 to 12 an order, mostly few, none for the last seventh; few products have most;
  no discount (NULL) for 70 %; electronics come back more often.
"""

from __future__ import annotations

import numpy as np

from tests.laboratory.columns import Tables, booleans, dates, decimals, doubles, integers, longs, table, times
from tests.laboratory.draws import day, draw_of, numbered, shuffled, size, skewed, weighted
from tests.laboratory.texts import CITIES, COUNTRIES, FIRST, LAST, choice, digits, joined, passages, where

CATEGORIES = ("books", "electronics", "tools", "garden", "kitchen", "lab", "music", "other")
GOODS = ("lamp", "microscope", "kettle", "notebook", "drone", "pipette", "guitar", "spade")


def tables(scale: float) -> Tables:
    customers, products, orders, lines = (size(rows, scale) for rows in (80_000, 9_000, 320_000, 1_000_000))

    draw = draw_of("shop_customer")
    city = weighted(draw, 1 / np.arange(1, 41), customers)
    first, last = draw.integers(0, 25, customers), draw.integers(0, 26, customers)
    signup = day("2019-01-01") + skewed(draw, 2_000, customers, 0.8)
    domains = ["@example.org", "@mail.example", "@Uni.example", "@shop.example"]
    segments = ["consumer", "business", "education", "reseller"]
    yield table(
        "shop_customer",
        customer_id=integers(np.arange(customers) + 1),
        full_name=joined(choice(FIRST, first), " ", choice(LAST, last)),
        email=where(
            draw.random(customers) < 0.9,
            joined("user", digits(np.arange(customers) + 1), choice(domains, weighted(draw, [5, 3, 2, 1], customers))),
        ),
        city=choice(CITIES, city),
        country=choice(COUNTRIES, city),
        segment=choice(segments, weighted(draw, [70, 18, 10, 2], customers)),
        signup=dates(signup),
        credit_limit=decimals(
            (draw.gamma(2, 900, customers) * 100).astype(np.int64), 10, 2, draw.random(customers) < 0.4
        ),
        newsletter=booleans(draw.random(customers) < 0.35),
        referrer_id=integers(
            (draw.random(customers) * (np.arange(customers) + 1)).astype(int) + 1, draw.random(customers) < 0.75
        ),
    )

    draw = draw_of("shop_product")
    category = weighted(draw, [30, 22, 15, 12, 9, 7, 4, 1], products)
    price = (np.exp(draw.normal(3.2, 1, products)) * 100).astype(np.int64) + 99
    yield table(
        "shop_product",
        product_id=integers(np.arange(products) + 1),
        sku=joined(choice("BK EL TO GA KI LA MU XX".split(), category), "-", digits(np.arange(products) * 7 + 13, 6)),
        product_title=joined(
            choice(["Étui", "Mini", "Pro", "Classic", "Größe L", "Eco"], draw.integers(0, 6, products)),
            " ",
            choice(GOODS, category),
            " ",
            digits(draw.integers(1, 99, products)),
        ),
        category=choice(CATEGORIES, category),
        brand=choice([f"Brand{number:02}" for number in range(60)], skewed(draw, 60, products, 2)),
        list_price=decimals(price, 10, 2),
        weight_kg=doubles(draw.gamma(1.5, 1.2, products), 3, draw.random(products) < 0.1),
        launched=dates(day("2016-01-01") + draw.integers(0, 2_900, products)),
        discontinued=booleans(draw.random(products) < 0.12),
        blurb=passages(draw, products, 8),
    )

    draw = draw_of("shop_order")
    customer = shuffled(draw, customers, skewed(draw, customers, orders, 2))
    waited = draw.exponential(220, orders).astype(int) % 1_200
    ordered = np.sort((signup[customer] + waited) * 86400 + draw.integers(0, 86400, orders))
    status = weighted(draw, [80, 8, 7, 5], orders)
    yield table(
        "shop_order",
        order_id=longs(np.arange(orders) * 3 + 1_000_001),
        customer_id=integers(np.where(draw.random(orders) < 0.003, customers + 9_999, customer + 1)),
        ordered_at=times(ordered),
        status=choice(["shipped", "open", "cancelled", "returned"], status),
        channel=choice(["web", "app", "phone", "fair"], weighted(draw, [55, 35, 8, 2], orders)),
        coupon=choice(["WELCOME10", "SPRING", "LOYAL5", None], weighted(draw, [10, 4, 6, 80], orders)),
        ship_city=choice(CITIES, np.where(draw.random(orders) < 0.8, city[customer], draw.integers(0, 40, orders))),
        shipped_on=dates(ordered // 86400 + draw.integers(0, 12, orders), (status == 1) | (status == 2)),
    )

    draw = draw_of("order_line")
    order = np.repeat(np.arange(orders), 1 + skewed(draw, 12, orders, 3))[:lines]
    lines = len(order)
    product = shuffled(draw, products, skewed(draw, products, lines, 2.2))
    yield table(
        "order_line",
        order_id=longs(order * 3 + 1_000_001),
        line_no=integers(numbered(order)),
        product_id=integers(product + 1),
        qty=integers(1 + skewed(draw, 20, lines, 5)),
        unit_price=decimals((price[product] * draw.uniform(0.8, 1.02, lines)).astype(np.int64) + 1, 10, 2),
        discount=decimals(np.array([5, 10, 20])[draw.integers(0, 3, lines)], 4, 2, draw.random(lines) < 0.7),
        was_returned=booleans(draw.random(lines) < np.where(category[product] == 1, 0.09, 0.03)),
    )
