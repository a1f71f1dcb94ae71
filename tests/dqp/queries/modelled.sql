select 1
select 1 as a, 'x' as b, null as c, true, 1.5, date '2020-01-01'
select 1 where false
select count(*)
select * from pg.orders
from pg.orders
from pg.orders select id
table pg.orders
select id, id from pg.orders
select orders.id from pg.orders
select pg.orders.id, orders.amount from pg.orders
select ID, "Amount", Pg.OrDeRs.Note from PG.Orders
select o.* from pg.orders o
select o.*, c.name from pg.orders o, maria.customers c where o.customer = c.id
select * exclude (note, day) from pg.orders
select * replace (amount * 2 as amount) from pg.orders
select * rename (id as order_id) from pg.orders
select o.* exclude (day) replace (upper(note) as note) from pg.orders o
select c.* exclude (id) from maria.customers c
select id from pg_orders
select pg_orders.id, o.note from pg_orders join pg_orders o using (id)
select * from wealthy
select w.name from wealthy w where w.total > 10
select name, count(*) from wealthy group by name
select * from numbers
select n.k, o.id from numbers n join pg.orders o on o.id = n.k
select a.label, b.label from numbers a, numbers b where a.k = b.k + 1
select id + 1 as next, next * 2 as twice from pg.orders
select id as a, a from pg.orders where a > 2
select amount * 2 as twice from pg.orders where twice > 20 and twice < 100
select customer as note, note from pg.orders
select customer % 2 as parity, count(*) from pg.orders group by parity
select customer % 2 as parity, count(*) as n from pg.orders group by parity having n > 1
select customer % 2 as parity, sum(amount) as s, s + 1 as t from pg.orders group by 1
select upper(note) as note, count(*) from pg.orders group by note having note = 'a'
select upper(note) as big, count(*) from pg.orders group by big having big = 'A'
select sum(amount) as total from pg.orders having total > 1
select sum(amount) from pg.orders
select count(*), count(amount), count(distinct customer), avg(amount), min(day), max(note) from pg.orders
select sum(amount) filter (where customer = 1), count(*) filter (note is not null) from pg.orders
select sum(distinct amount), string_agg(note, ',' order by id desc), list(id order by amount, id) from pg.orders
select array_agg(id order by id desc) filter (where id > 2), first(note order by id), last(note order by id) from pg.orders
select arg_max(note, amount), median(amount), quantile_cont(amount, 0.25), stddev(amount), mode(customer) from pg.orders
select percentile_cont(0.5) within group (order by amount desc), bool_and(id > 0), bit_or(id), product(id) from pg.orders
select count(distinct (customer, note)) from pg.orders
select customer, count(*) from pg.orders group by customer
select customer, count(*) from pg.orders group by 1
select customer, note, count(*) from pg.orders group by all
select customer + 1, customer + 1 + count(*) from pg.orders group by customer + 1
select customer, customer + 1 as more, max(id) - min(id) from pg.orders group by customer
select customer from pg.orders group by customer having sum(amount) > 20
select customer from pg.orders group by customer, note
select distinct customer from pg.orders group by customer, note
select 5 as five, count(*) from pg.orders group by five
select count(*) from pg.orders group by 'x'
select count(*) from pg.orders where false
select customer, count(*) from pg.orders where false group by customer
select sum(amount) + count(*) * 2, sum(amount) / count(*) from pg.orders
select case when sum(amount) > 5 then 'much' else 'little' end from pg.orders
select customer, note, sum(amount) from pg.orders group by rollup (customer, note)
select customer, note, sum(amount), grouping(customer), grouping(customer, note) from pg.orders group by cube (customer, note)
select customer, note, count(*) from pg.orders group by grouping sets ((customer), (note), (customer, note), ())
select customer, note, day, count(*) from pg.orders group by customer, rollup (note, day)
select customer, note, day, count(*) from pg.orders group by grouping sets (customer, rollup (note)), day
select customer + 1 as k, customer, count(*) from pg.orders group by rollup (customer + 1, customer)
select coalesce(note, 'none'), count(*) from pg.orders group by rollup (note) having count(*) > 1
select customer, case when grouping(customer) = 1 then 'all' else 'one' end from pg.orders group by rollup (customer)
select (select max(c.id) from maria.customers c where c.id <= o.customer), count(*) from pg.orders o group by o.customer
select o.customer, (select name from maria.customers c where c.id = o.customer) from pg.orders o group by rollup (o.customer)
select customer from pg.orders o group by customer having exists (select 1 from maria.customers c where c.id = o.customer)
select o.id, c.name from pg.orders o join maria.customers c on o.customer = c.id
select o.id, c.name from pg.orders o inner join maria.customers c on o.customer = c.id and c.city = 'Rome'
select o.id, c.name from pg.orders o left join maria.customers c on o.customer = c.id
select o.id, c.name from pg.orders o right join maria.customers c on o.customer = c.id
select o.id, c.name from pg.orders o full outer join maria.customers c on o.customer = c.id
select o.id, c.name from pg.orders o cross join maria.customers c
select o.id, c.name from pg.orders o, maria.customers c
select o.id, c.name from pg.orders o left join maria.customers c on true
select o.id, c.name, i.product from pg.orders o, maria.customers c left join data.items i on i.product = c.name
select a.id, b.id, i.qty from pg.orders a, pg.orders b right join data.items i on i.order_id = b.id where a.id = i.order_id
select * from pg.orders join pg.customers using (id)
select id, orders.id, customers.id from pg.orders left join pg.customers using (id)
select id, o.id, c.id from pg.orders o right join pg.customers c using (id)
select id, o.id, c.id from pg.orders o full join pg.customers c using (id)
select * from pg.orders o right join pg.customers c using (id)
select * from pg.orders o full join pg.customers c using (id)
select o.*, c.* from pg.orders o full join pg.customers c using (id)
select id, count(*) from pg.orders o full join pg.customers c using (id) group by id
select * from pg.orders full join pg.customers using (id) full join numbers n on n.k = id
select id from pg.orders full join pg.customers using (id) full join (values (1), (99)) v(id) using (id)
select * from pg.customers natural join maria.customers
select * from pg.customers c natural full join (select id, name as other from maria.customers) d
select * exclude (id) from pg.customers c natural left join maria.customers d
select * from pg.orders semi join maria.customers c on c.id = customer
select id from pg.orders anti join maria.customers c on c.id = customer
select * from pg.customers semi join pg.orders using (id)
select * from pg.orders o join (maria.customers c join data.items i on i.product = c.name) on o.id = i.order_id
select o.id, i.qty from pg.orders o left join (maria.customers c join data.items i on i.qty = c.id) on o.id = i.order_id
select * from (pg.orders o join maria.customers c on o.customer = c.id) where o.id > 1
select o.id, c.name from pg.orders o join maria.customers c on c.id = (select max(id) from maria.customers d where d.id <= o.customer)
select a.id from pg.orders a join pg.orders b on a.id = b.id or a.customer = b.customer
select a.name, b.name from pg.customers a join maria.customers b on a.id = b.id
select pg.customers.name, maria.customers.name from pg.customers join maria.customers on pg.customers.id = maria.customers.id
select s.x from (select id as x from pg.orders) s
select x + y from (select id, amount from pg.orders) s(x, y)
select a_1 from (select id as a, note as a from pg.orders) s
select * from (select id, id, id from pg.orders) s
select * from (select o.id, c.id from pg.orders o join maria.customers c on o.customer = c.id)
select n from (select count(*) n from pg.orders) union all select 7
select t.n from (select customer, count(*) as n from pg.orders group by customer) t where t.n > 1
select * from (select *, row_number() over (partition by customer order by id) rn from pg.orders) where rn = 1
with a as (select id, amount from pg.orders) select * from a
with a as (select id from pg.orders), b as (select id + 1 as id from a) select a.id, b.id from a join b on a.id = b.id
with a(x, y) as (select id, customer from pg.orders) select a.x, b.y from a join a b on a.x = b.y
with a as materialized (select id from pg.orders) select * from a where id in (select id from a)
with orders as (select * from pg.orders where id > 2) select orders.id from orders
with a as (with b as (select id from pg.orders) select * from b) select * from a
with a as (select 1 as id) select * from (with a as (select 2 as id) select * from a) t, a
with a as (select id from pg.orders) select (select max(id) from a), count(*) from maria.customers
with unused as (select 1) select 2
with a as (values (1, 'x'), (2, null)) select * from a
with a(k, v) as (values (1, 'x'), (2, null)) select v from a where k = 2
select id from pg.orders where customer in (select id from maria.customers)
select id from pg.orders where customer not in (select id from maria.customers where id is not null)
select id from pg.orders where customer not in (select parent from maria.customers)
select id from pg.orders o where exists (select 1 from maria.customers c where c.id = o.customer)
select id from pg.orders o where not exists (select * from maria.customers c where c.id = o.customer and c.city = o.note)
select id from pg.orders o where amount > (select avg(amount) from pg.orders p where p.customer = o.customer)
select id, (select name from maria.customers c where c.id = customer) from pg.orders
select id, (select count(*) from data.items where order_id = id) as n from pg.orders where n > 0
select id from pg.orders where amount >= all (select amount from pg.orders where amount is not null)
select id from pg.orders where amount < any (select qty from data.items)
select id from pg.orders where id = any (select order_id from data.items)
select id from pg.orders where id = any ([1, 2, 3]) and not id = any ([2])
select array(select id from maria.customers order by id)
select id, exists (select 1 from data.items where order_id = id) from pg.orders
select id in (select order_id from data.items) from pg.orders
select id from pg.orders o where exists (select 1 from data.items i where i.order_id = o.id and i.qty > (select min(j.qty) from data.items j where j.product = i.product and j.order_id <> o.id))
select (select (select max(i.qty) from data.items i where i.order_id = o.id)) from pg.orders o
select (select 1), (select null), (select id from pg.orders where false)
select id from pg.orders where (select count(*) from data.items where order_id = id) between 1 and 2
select coalesce((select max(qty) from data.items where order_id = id), 0) from pg.orders
select id from pg.orders where id in (1, 2, null)
select id from pg.orders where id not in (1, 2)
select id from pg.orders where customer not in (1, null)
select id, customer in [1, null] from pg.orders
select id from pg.orders where customer not in [1, 2]
select id, 5 in [] from pg.orders
select id from pg.orders where (id, customer) in ((1, 1), (2, 2))
select id, customer from pg.orders where not (customer = 1 and note = 'a')
select id from pg.orders where not (customer = 1 or note is null)
select id from pg.orders where not (customer < 2) or not (amount >= 10.5)
select id from pg.orders where not not (customer = 1)
select not not customer from pg.orders
select id from pg.orders where not (note like 'a%') and not (note in ('b'))
select id from pg.orders where customer between 1 and 2
select id from pg.orders where not (customer between 1 and 2)
select id from pg.orders where id + 1 between 2 and 3 or note = 'a'
select id, customer between 1 and 2, not customer between 1 and 2 from pg.orders
select id from pg.orders where day between '2024-01-01' and date '2024-02-01'
select (customer between 1 and 2) = true from pg.orders
select id from pg.orders where customer is distinct from 1
select id from pg.orders where not (customer is not distinct from null)
select note is null, note is not null, (customer = 1) is true, (customer = 1) is not true from pg.orders
select id from pg.orders where note like '%a%' or note ilike 'B' or note similar to 'c.*' or note ~ '^d'
select id from pg.orders where note glob 'a*' or note not like 'a!%' escape '!'
select case customer when 1 then 'one' when 2 then 'two' end, case when id > 1 then 1 end, if(id > 2, 'x', 'y') from pg.orders
select cast(id as varchar), id::double, try_cast(note as int), amount::decimal(10, 1), '2020-01-01'::date from pg.orders
select id / 2, id // 2, id % 2, id ** 2, id ^ 2, -id, id & 1, id | 8, xor(id, 3), ~id, id << 2 from pg.orders
select note || 'x', concat(note, 1, null), upper(note), substring(note, 1, 1), note[1], left(note, 1), length(note) from pg.orders
select trim(both 'a' from note), position('a' in note), replace(note, 'a', 'b'), lpad(note, 3, '-'), reverse(note) from pg.orders
select split_part('a,b', ',', 2), string_split(note, 'a'), regexp_replace(note, 'a', 'z', 'g'), regexp_extract(note, '(.)', 1) from pg.orders
select day + interval 1 day, day - interval '2' month, day + interval (id) day, extract(year from day), date_part('month', day) from pg.orders
select date_trunc('month', day), date_diff('day', day, date '2025-01-01'), strftime(day, '%Y/%m'), last_day(day), dayname(day) from pg.orders
select year(day), make_date(2020, 1, id), day::timestamp, epoch(day), day - date '2024-01-01', to_days(id) from pg.orders
select round(amount, 1), floor(amount), ceil(amount), abs(-amount), sqrt(id), greatest(id, customer), least(1, id), nullif(id, 1) from pg.orders
select coalesce(note, 'z'), ifnull(note, 'y'), typeof(amount), hash(id) = hash(id), md5(note) from pg.orders
select attrs.color, attrs['size'], i.attrs.color, struct_extract(attrs, 'color'), (attrs).size from data.items i
select data.items.attrs.color, items.attrs.size + 1 from data.items
select tags[1], tags[-1], tags[1:2], len(tags), list_contains(tags, 'a'), 'a' = any(tags), [1, 2, qty] from data.items
select m['k'], map_keys(m), cardinality(m), m['missing'] from data.items
select {'a': qty, 'b': product}, struct_pack(x := qty), row(qty, product), {'a': qty}.a from data.items
select list_transform(tags, lambda x: upper(x) || product), list_filter([1, 2, 3], lambda x: x > qty) from data.items
select list_transform([{'p': 1}], lambda s: s.p + qty), list_reduce([1, 2, 3], lambda a, b: a + b) from data.items
select [x || product for x in tags if x <> 'b'], [x + 1 for x in [1, 2]] from data.items
select list_sort(tags), list_aggregate([1, 2], 'sum'), list_sum([1, 2]), flatten([[1], [2]]), array_to_string(tags, '-') from data.items
select '{"a": {"b": 1}, "c.d": 2}'::json -> 'a' ->> 'b', json_extract('{"c.d": 2}', 'c.d'), '{"c.d": 2}'::json ->> '$."c.d"', '{"c.d": 3}'::json -> 'c.d'
select json_extract_string('[1, "x"]', '$[1]'), '[7, 8]'::json -> 1, to_json({'a': id}) from pg.orders
select row_number() over (order by id), rank() over (partition by customer order by amount desc), lag(id) over (order by id), lead(id, 2, 0) over (order by id) from pg.orders
select sum(amount) over (partition by customer), sum(amount) over (order by id rows between 1 preceding and current row) from pg.orders
select sum(id) over w, count(*) over (w rows unbounded preceding), max(id) over (partition by note) from pg.orders window w as (partition by customer order by id)
select sum(id) over (v order by id) from pg.orders window w as (partition by customer), v as (w)
select first_value(note ignore nulls) over (order by id rows between unbounded preceding and unbounded following), last_value(note) over (order by id) from pg.orders
select sum(id) filter (where id > 1) over (order by id), ntile(2) over (order by id), percent_rank() over (order by id), nth_value(id, 2) over (order by id) from pg.orders
select sum(amount) over (order by day range between interval 1 month preceding and current row) from pg.orders
select count(*) over (order by id groups between 1 preceding and 1 following exclude current row) from pg.orders
select customer, sum(sum(amount)) over (order by customer), rank() over (order by count(*) desc, customer) from pg.orders group by customer
select customer, sum(amount) / sum(sum(amount)) over () from pg.orders group by customer
select customer, row_number() over (order by customer + 1) from pg.orders group by customer, note
select id, customer from pg.orders qualify row_number() over (partition by customer order by id) = 1
select id, rank() over (partition by customer order by amount) r from pg.orders qualify r = 1
select customer, count(*) from pg.orders group by customer qualify row_number() over (order by count(*) desc, customer) <= 2
select id, sum(id) over () as s, s * 2 as t from pg.orders
select distinct sum(id) over (partition by customer) from pg.orders
select distinct note from pg.orders
select distinct on_hand from (select id % 2 as on_hand from pg.orders)
select id from pg.orders union select id from maria.customers
select id from pg.orders union all select id from maria.customers
select id from pg.orders intersect select id from maria.customers
select customer from pg.orders intersect all select id from maria.customers
select customer from pg.orders except select id from maria.customers
select customer from pg.orders except all select id from maria.customers
select 1 union select 2 intersect select 2
select 1 union all select 2 except select 1
select 1 union (select 2 union all select 2)
select id, note from pg.orders union all select 1, 'x' union all select null, null
select id from pg.orders union all select amount from pg.orders
select count(*) from (select id from pg.orders union select customer from pg.orders) u
select customer from pg.orders where id in (select id from pg.customers union select 2)
with a as (select 1 as x union all select 2) select * from a union all select x + 1 from a
values (1, 'a'), (2, 'b')
values (1.5, date '2020-01-01', null, true), (2, null, 'x', false)
select * from (values (1, 'a'), (2, null)) v(k, s)
select col0, col1 from (values (1, 2.5), (-3, 4))
select o.id, v.label from pg.orders o join (values (1, 'one'), (2, 'two')) v(k, label) on v.k = o.id
select * from range(3)
select range + 1 from range(2, 5)
select r.x from range(5) r(x), pg.orders where x = id
select g from generate_series(1, 3) t(g)
select u.v from unnest([1, 2, 3]) u(v)
select * from unnest(['a', 'b'])
select id from pg.orders limit 0
select count(*) from (select id from pg.orders limit 2)
select id from (select id from pg.orders order by amount desc, id limit 1) union all select 0
select current_date >= date '2020-01-01', now() > timestamptz '2020-01-01', today() - current_date, current_timestamp = now()
select count(*) from pg.orders where day < current_date and day < localtimestamp
select max(id) filter (where day < now()::date) from pg.orders
select sum(case when note = 'a' then 1 else 0 end), count(case when customer = 1 then 1 end) from pg.orders
select o.customer c, count(*) filter (where exists (select 1 from data.items i where i.qty > 1)) from pg.orders o group by c
select min(attrs.size), max(tags[1]) from data.items group by product, attrs.color
select id from pg.orders where note in (select product from data.items) or customer is null
select id from pg.orders where case when customer in (select id from maria.customers) then true else id = 5 end
select sum(x) from (select id as x from pg.orders union all select qty from data.items) where x > 1
select count(*) n from pg.orders, maria.customers c, data.items i where orders.customer = c.id and i.order_id = orders.id
select "weird name", "select" from pg."Odd Table"
select "Odd Table"."weird name" + 1 as "other name" from pg."Odd Table" where "SELECT" is null
select 1e3, 1_000, 0.5, 'it''s', $$dollar$$, e'a\tb', 123456789012345678901234567890 from pg.orders
select /* one */ id from pg.orders -- the end
