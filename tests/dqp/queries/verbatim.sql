with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select * from r
with recursive r(id) as (select min(id) from maria.customers union all select c.id from r join maria.customers c on c.parent = r.id) select * from r join pg.orders o on o.customer = r.id
select distinct note from pg.orders order by id
select o.id, t.tag from pg.orders o join data.items i on i.order_id = o.id, unnest(i.tags) t(tag)
select id, unnest([1, 2]) as u from pg.orders
select product, unnest(tags) from data.items
select columns('i.*') from pg.orders
select min(columns(*)) from pg.customers
select orders from pg.orders
select c from maria.customers c where c.id = 1
select id from pg.orders union all by name select name, id from maria.customers
select * from pg.orders pivot (sum(amount) for customer in (1, 2))
from (select customer, amount from pg.orders) unpivot (value for name in (customer))
pivot pg.orders on customer in (1, 2) using count(*) group by note
select * from pg.customers positional join maria.customers
select count(*) from pg.orders where random() >= 0
select count(distinct r) <= 6 from (select random() r from pg.orders)
with a as (select random() as r) select x.r = y.r from a x, a y
select count(*) from (select id from pg.orders limit 50%)
select count(*) from pg.orders limit 1 + 1
select id from pg.orders order by id limit (select 2)
select "count_star()" from (select count(*) from pg.orders)
select sum("sum(amount)") from (select customer, sum(amount) from pg.orders group by customer)
select #1, #2 from pg.orders
values (1, date '2020-01-01'), (2, '2021-01-01')
select (select sum(o.amount)) from pg.orders o
select count(*) from pg.orders tablesample 100%
select pg.customers.name, maria.customers.name, unnest([1, 2]) from pg.customers, maria.customers where pg.customers.id = maria.customers.id
select customers.name, unnest([1]) from pg.customers where exists (select 1 from maria.customers where customers.id = 1)
select w.name, unnest([w.total]) from wealthy w
select n.label, unnest([n.k]) from numbers n
with a as (select id, unnest([1, 2]) u from pg.orders) select a.id, b.u from a join a b on a.id = b.id
select name from maria.customers c where exists (with recursive r(n) as (select 1 union all select n + 1 from r where n < 3) select 1 from r where n = 3)
select id, 3 in [id, null], unnest([1]) from pg.orders
select unnest([current_date]) >= date '2020-01-01' from pg.orders
select id as x, (select x) from pg.orders
select customer, (select count(*) from data.items where qty > sum(o.amount)) from pg.orders o group by customer
select id from pg.orders o where id in (with a as (select o.id as z) select z from a)
with orders as (select 1 as id) select unnest([1]), * from orders, pg.orders p
select * from wealthy w join (select name, unnest([1,2]) u from wealthy) x using (name)
select * from (values (1, [1,2]), (2, null)) v(a, b)
select * from (values (current_date), (date '2020-01-01')) v(d) where d < current_date
select count(*), sum(range) from range(1000)
select * from range(date '2024-01-01', date '2024-01-03', interval 1 day)
select o.id, r.range from pg.orders o join range(3) r on r.range = o.id
select o.id from pg.orders o, range(o.id) r
select id from pg.orders where id in (select unnest([1, 2]))
select id from pg.orders where id in (select * from range(3))
select struct_extract(attrs, 'size'), attrs.*  from data.items
select exists (select 1 from unnest([1, 2]) u(x) where x = id) from pg.orders
select amount, id from pg.orders fetch first 2 rows only
select id from pg.orders order by id fetch next 2 rows only
select x.k, unnest([1]) from pg.orders as x(k)
select * from (select * from pg.orders where id = 1) pivot (count(*) for note in ('a', 'b') group by id)
select t.a.x, unnest(t.b) from (select {'x': 1} as a, [1,2] as b) t
select s from (select {'s': 1} as t) s
select orders.*, unnest([1]) from pg.orders
select pg.orders.id, unnest([1]) from pg.orders where pg.orders.note = 'a'
select #2 from pg.orders
select 1 from pg.orders having true
select 1 from pg.orders group by ()
select o.id, r.range from pg.orders o join range(3) r on r.range = o.id
select * from range(3) r
select r.r from range(3) r
select g.generate_series from generate_series(1,2) g
select u.unnest from unnest([1,2]) u
select u.u from unnest([1,2]) u
select o.id, r.range from pg.orders o join range(3) r on r.range = o.id
select g.generate_series, g from generate_series(1,2) g
select u.unnest from unnest([1,2]) u
select customer - customer as id from pg.orders group by all having id = 0
values ((select count(*) from pg.orders), 1), (2, 3)
with a as (select max(id) as x from pg.orders) select * from (values ((select x from a))) t
select note.id, (select max(o.id) from (select note, id from pg.orders) o where o.id = note.id) from pg.customers note
select count(l.b), bool_or(l.b) from pg.customers c, lateral (select bool_and(o.id > 9 order by o.id) as b from pg.orders o where o.customer = c.id) l
select bool_or(distinct columns(['id', 'customer']) > 3) from pg.orders
with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select x.n, y.n from r x join r y on x.n = y.n + 1
with recursive t as (select id, name from maria.customers where id > 1), r(id, n) as (select id, 1 from t union all select r.id, n + 1 from r where n < 3), s as (select id, max(n) m from r group by id) select s.id, m, t.name from s join t on t.id = s.id where m > 1
with recursive r(k) as (select id from pg.orders where id = 1 union select c.id from r join maria.customers c on c.parent = r.k where c.city is not null or c.id = 3) select count(*) from r, (select max(id) m from pg.orders where id < 4) x where r.k < x.m
with orders as (select id from pg.orders where id < 4) select o.id, unnest([1]) from orders o where o.id > (with recursive orders(n) as (select 1 union all select n + 1 from orders where n < 2) select max(n) from orders)
with recursive r(n) as (select 1 union all select n + 1 from r where n < 3) select * from pg.orders where id in (select n from r) and note = 'a'
with a as (select customer, count(*) from pg.orders group by customer), b as (select * from a where customer is not null) select unnest([a.customer]), "count_star()" from a where customer in (select customer from b where "count_star()" > 1)
with a(x, y) as (select customer, sum(amount) s from pg.orders group by customer) select unnest([x]) u, y from a where y > 5
select unnest([o.id]) from pg.orders o where o.amount > 6 and o.note = 'a'
select unnest([o.id]) from pg.orders o left join maria.customers c on c.id = o.customer where c.name is null and o.id > 1
select unnest([o.id]) from maria.customers c right join pg.orders o on c.id = o.customer where c.city is null and o.id > 1
select unnest([id]) from pg.orders join pg.customers using (id) where id > 1 and note is not null
select unnest([c.id]) from (select customer id, count(*) n from pg.orders group by customer) c where c.n > 1
select unnest([x]) from (select customer x, sum(amount) y from pg.orders where id < 6 group by customer) where y > 7 and x > 1
select unnest([o.id]) from pg.orders o where exists (select 1 from data.items i where i.qty > 1) and o.id in (select order_id from data.items where qty < 5)
select unnest([o.id]) from pg.orders o where o.id in (select i.order_id from data.items i where i.qty < o.customer + 5)
select unnest([o.customer]) as customer from pg.orders o where customer = 1
select customer + 1 as id, unnest([1]) from pg.orders where id > 2
select a.id, b.id from pg.customers a positional join maria.customers b where a.id > 1 and b.id > 1
pivot (select customer, note, amount from pg.orders where id < 6) on note in ('a', 'b') using sum(amount) group by customer
select unnest([1]), * from pg.orders o, lateral (select i.product from data.items i where i.qty > o.customer) l
select (select unnest([n.k])) from numbers n where n.k > 1
select unnest([o.id]), l.* from pg.orders o, lateral (select sum(qty) q from data.items i where i.order_id = o.id) l where o.id < 4
select count(l.b) from pg.customers c, lateral (select list(o.id) as b from pg.orders o where o.customer = c.id and o.id < c.id + 9) l
select c.name, l.s from maria.customers c left join lateral (select sum(o.amount) s from pg.orders o where o.customer = c.id) l on l.s > 6
select c.id, l.m from maria.customers c, lateral (select max(id) m from (select id, customer from pg.orders o where o.customer = c.id) t where t.customer = c.parent) l
select * from maria.customers c, lateral (select o.id as n, 'x' q from pg.orders o where o.customer = c.id) l natural join (select 'x' q, name from pg.customers) p
with a as (select id from pg.orders), b as (with a as (select id + 10 as id from a) select * from a) select unnest([b.id]), a.id from a, b where b.id = a.id + 10
with recursive a as (select id from maria.customers c join pg.orders o on o.customer = c.id where id > 1), r(n) as (select 1 union all select n + 1 from r where n < 2), b as (select a.id from a, r) select unnest([id]) from pg.customers
select a.id, b.id from pg.orders a asof join pg.orders b on a.customer = b.customer and a.id > b.id and a.amount > 6
