select 1
select 1 as a, 'x' as b, null as c, true, 1.5, date '2020-01-01'
select 1 where false
select count(*)
select * from pg.orders
from pg.orders
from pg.orders select id
from pg.orders o join maria.customers c on c.id = o.customer select o.id, c.name
from pg.orders, maria.customers c where customer = c.id
select (from pg.orders o join maria.customers c on c.id = o.customer select count(*))
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
select (select count(*) from maria.customers c where c.id <> g.parity) as n from (select customer % 2 as parity from pg.orders group by 1) g
select g.parity from (select customer % 2 as parity from pg.orders group by 1) g order by (select count(*) from maria.customers c where c.id <> g.parity)
select (select o.note from pg.orders o where o.id = g.one) as note from (select bit_xor(1) as one from maria.customers) g
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
select customer - customer from pg.orders group by all having customer > 0 and count(id) > 0
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
select id, day, day between '2024-01-15 12:00' and day + interval 1 day from pg.orders
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
select apply([1, 2, qty], lambda x: x + 1), list_apply([qty], lambda x: -x) from data.items
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
select id as customer, (select max(c.id) from maria.customers c where c.id = customer) from pg.orders
select (select name from maria.customers where id = customer limit 1) from pg.orders
select name from pg.customers where exists (select 1 from maria.customers where name = customers.name)
select c.id from maria.customers c where id in (select customer from pg.orders where c.name = note or note is null)
select (select sum(o.amount + i.qty) from data.items i) from pg.orders o
select max((select max(qty) from data.items)) from pg.orders
select max((select max(qty) from data.items where order_id = o.id)) from pg.orders o
select sum(amount) over (partition by (select max(id) from maria.customers)) from pg.orders
select id from pg.orders group by id, id having id > 2
select id, id + 0 as k from pg.orders group by k, id order by k
select distinct customer + 1 from pg.orders order by customer + 1
select distinct customer as c from pg.orders order by c desc
select customer as id, sum(id) from pg.orders group by customer
select upper(note) as note, sum(id) from pg.orders group by upper(note)
select upper(note) u from pg.orders group by upper(note) order by upper(note)
select lower(note) n from pg.orders group by ALL having count(*) > 1
select NOTE, count(*) from pg.orders group by Note having note > 'a'
select UPPER(note) from pg.orders group by upper(NOTE)
select amount as a, a + 1 as b, b + 1 as a2 from pg.orders
select id as a, customer as a from pg.orders order by 1
select * from pg.orders where (note, id) = ('a', 1)
select row(id, note) = row(1, 'a') from pg.orders
select note[1:1] || '-' from pg.orders
select note[:1], note[:id], note[: id - 1], note[id:], tags[:2], tags[:-:2], tags[:qty][1:qty] from pg.orders, data.items
select -(-id), - -id, +id from pg.orders
select not id in (1,2) and not note like 'a' or not exists(select 1 where id = 3) from pg.orders
select (id = 1) = (customer = 1), (id = 1) is null, id = 1 and note = 'a' or customer = 2 from pg.orders
select (id > 1 and id < 3)::int + 1 from pg.orders
select case when not (id between 2 and 3) then 'out' else 'in' end from pg.orders
select (not note is null) = true, not (note is null or id = 1) from pg.orders
select interval (id + 1) month + day from pg.orders
select day + to_months(id::int) from pg.orders
select sum(id) filter (where not (id between 2 and 3)) from pg.orders
select id from pg.orders o where (select count(*) from pg.orders p where p.id < o.id) = 2
select (select count(*) from (select 1 from maria.customers c where c.id <= o.id limit 2)) from pg.orders o
select (select string_agg(name, ',' order by name) from (select name from maria.customers c where c.id >= o.id order by name limit 2)) from pg.orders o
with a as (select * from pg.orders) select (select count(*) from a where a.id < o.id) from pg.orders o
with a as (select id from pg.orders), a2 as (select * from a union all select * from a) select count(*) from a2, a
with a as (select 1 as x), b as (with a as (select 2 as x) select * from a) select a.x, b.x from a, b
select * from (with a as (select 5 as x) select * from a), (select 6 as y)
select * from loud
select "upper(""name"")" from loud
select l.* exclude (id) from loud l
select o.id from pg.orders o left join maria.customers c on c.id = o.customer and c.name is not null where c.id is null
select * from pg.orders o left join maria.customers c on o.customer = c.id left join data.items i on i.order_id = o.id and c.id > 1
select * from pg.customers a full join maria.customers b on a.id = b.id and a.name = b.name full join numbers n on n.k = coalesce(a.id, b.id)
select a.id from pg.orders a, pg.orders b, pg.orders c where a.id = b.id and b.id = c.id
select * from pg.customers left join maria.customers using (id, name)
select id, name, city from pg.customers full join maria.customers using (id, name)
select c.* from pg.customers c right join maria.customers using (id)
select id from pg.customers left join maria.customers using (id) left join pg.orders using (id)
select * replace (id + 1 as id) from pg.customers full join maria.customers using (id)
select * exclude id from pg.orders
select count(*) from pg.orders o join maria.customers c on o.customer = c.id group by c.city order by c.city
select 'a' in (select note from pg.orders), null in (select id from pg.orders), 1 not in (select customer from pg.orders)
select id = some (select customer from pg.orders), id <> all (select customer from pg.orders where customer is not null) from pg.orders
select id not in (select customer from pg.orders) from pg.orders
select not id = any (select customer from pg.orders) from pg.orders
select not id >= all (select id from pg.orders) from pg.orders
select exists (select 1 from pg.orders limit 0), exists (select count(*) from pg.orders where false)
(select 1 union all select 2) intersect (select 2)
select * from (select 1 a union all select 2 order by 1 desc limit 1)
select 1 a union all (select 2 order by 1 limit 1) order by a desc limit 1
select id from pg.orders except (select id from maria.customers union select 5)
select null union all select 1
select null as a, 'x' union all select 1, null
values (null, 1), ('x', null)
select v.a from (values (1.5), (2)) v(a) union select 1
select array_agg(id order by note nulls first, id desc), list(distinct customer order by customer) from pg.orders
select sum(distinct customer) filter (where id < 5), count(*) filter (where note = 'a') * 2 from pg.orders
select customer, list(note order by id)[1], len(list(id)) from pg.orders group by customer
select any_value(note), count(note), first(id order by id desc) from pg.orders
select histogram(customer), approx_count_distinct(id), covar_pop(id, customer), corr(id, amount) from pg.orders
select max(id, 2), arg_max(note, id, 2), quantile_cont(amount, [0.25, 0.5]) from pg.orders
select json_group_array(id) from pg.orders
select count(*) over () c, count(*) from pg.orders group by customer
select sum(id) over (order by amount desc nulls first, id) from pg.orders
select row_number() over (order by note collate nocase, id) from pg.orders
select lag(id, 1, -1) over (partition by note is null order by id) from pg.orders
select id, case when row_number() over (order by id) > 2 then 'late' end from pg.orders
select rank() over w1 + rank() over w2 from pg.orders window w1 as (order by id), w2 as (partition by customer order by id)
select grouping(customer) + grouping(note), customer, note from pg.orders group by rollup(customer, note) order by all
select grouping_id(customer, note) g, count(*) from pg.orders group by cube(customer, note)
select customer as c, count(*) from pg.orders group by rollup(c)
select customer, count(*) from pg.orders group by rollup(1)
select coalesce(customer, -1) as customer, count(*) from pg.orders group by cube(customer)
select customer, sum(count(*)) over () from pg.orders group by grouping sets ((customer), ())
select customer, note from pg.orders group by grouping sets ((customer), (customer), (note))
select (customer, note), count(*) from pg.orders group by (customer, note)
select id::varchar::int, '5'::int + id, date '2024-01-01'::timestamp, try_cast(note as date) from pg.orders
select 'a' || id || null, concat_ws('-', id, note), format('{}-{}', id, note), printf('%d', id) from pg.orders
select date_part(['year','month'], day), extract(epoch from day), date_sub('month', day, date '2025-01-01'), day::varchar from pg.orders
select substr(note, 1, 1), instr(note, 'a'), strpos(note, 'a'), ltrim(' a'), rtrim('a '), repeat(note, 2), translate(note, 'a', 'b'), ascii(note), chr(65) from pg.orders
select regexp_matches(note, '^a'), note !~ 'a', note not ilike 'A%', starts_with(note, 'a'), note ^@ 'a', contains(note, 'a'), suffix(note, 'b') from pg.orders
select round(amount), round(2.567, 2), trunc(amount), mod(id, 3), pow(id, 2), exp(0), ln(1), log(100), log2(8), sign(-id), pi(), even(id), gcd(id, 4), factorial(id) from pg.orders
select id, log2(id::double + 0.3), log(2, id::double + 0.3) from pg.orders
select bit_count(id), id & 3 | 4, xor(id, 1), 1 << id, ~id & 7 from pg.orders
select md5(note), sha256(note), hex(note), base64(note::blob), encode(note), url_encode('a b') from pg.orders
select struct_insert(attrs, extra := qty), attrs = {'color': 'red', 'size': 1} from data.items
select m['k'] + 1, map_values(m), element_at(m, 'k'), map_from_entries([(1, 2)]) from data.items
select [qty, null], [1,2,3][qty], list_slice([1,2,3], 1, 2), [1,2] || [3], tags || ['z'], list_concat(tags, ['y']), tags @> ['a'] from data.items
select list_zip([1,2],[3,4]), range(qty), generate_series(1, qty), list_position(tags, 'b'), array_has(tags, 'a') from data.items where qty is not null
select list_transform(tags, lambda x, i: x || i::varchar || product) from data.items
select list_filter(tags, lambda t: t in ['a']), list_transform([1, 2], lambda a: a in [1]) from data.items
select [[y + 1 for y in x] for x in [[1, 2], [3]]]
select {'k': [x for x in tags]}, [x.size for x in [attrs]] from data.items
select '[1,2]'::json->0, '{"a":{"b":2}}'->'a'->'b', '{"a":1}'->>'a' = '1', ('{"a":1}'::json->>'$.a')::int + 1
select 1 as "A", 2 as "a b", 3 as "x""y"
select "A" + 1 from (select 1 as "a")
select t."a b" from (select 2 as "a b") t
select id from pg.orders order by (note is null), note, id limit 2
select id from (select id, amount from pg.orders order by amount limit 3) order by amount desc limit 2
select id, note from pg.orders order by length(note) desc nulls last, id limit 3
select customer, count(*) from pg.orders group by customer order by count(*) + 0 desc, customer limit 1 offset 1
select sum(id) from pg.orders order by 1
select count(*) from pg.orders order by count(*)
select k from pg.orders as a(k) where k < 3
select a, b from (select {'x': 1} as a, [1,2] as b)
select a.x from (select {'x': 1} as a)
select s.s from (select {'s': 1} as s) s
select main.wealthy.name from main.wealthy
select * from main.numbers
select pg.main.orders.id from pg.main.orders
select id from pg.main.orders o where o.id = 2
select coalesce(sum(amount), 0) from pg.orders where 1 = 0 having count(*) = 0
select customer from pg.orders group by customer having true
select count(*) filter (where id in (select order_id from data.items)) from pg.orders
select id in (1, 2) or note in ('a') as p, count(*) from pg.orders group by p
select if(id > 2, null, id) k, count(*) from pg.orders group by k having k is null
select exists (select count(*) from pg.orders where false)
select 5 from (select count(*) from pg.orders)
select 5, exists (select sum(id) from pg.orders having sum(id) > 1000)
select id, (select 5 from (select count(*) from pg.orders)) from pg.orders
select date '2024-01-01'::timestamp, date '2024-01-01'::varchar || 'x', (date '2024-01-01')::timestamp
select pg.main.orders.id from pg.main.orders
select max((select max(qty) from data.items where order_id = o.id)) from pg.orders o
select id between 1 and 2 and true, id between 1 and 2 or false, note collate nocase = 'A', -id * 2 + 1, - (id + 1) from pg.orders
select -tags[1]::int, tags[1]::varchar[1] from data.items where false
select id + 1 || 'x', 1 + 2 * 3 || 'y', 1 << 2 + 1, 5 & 3 = 1, 5 | 2 + 1, ~5 + 1, 1 < 2 and 2 < 3 or false from pg.orders
select 'a' < 'b' || 'c', not true and false, not (true and false), not true or true, true and not false
select id is distinct from 1 and true, id is not distinct from 1 = true, id isnull, id notnull from pg.orders
select case when id = 1 then 1 end + 1, case id when 1 then 2 else 3 end::varchar, -case when true then 1 end from pg.orders
select interval 1 day + interval 2 day, day + interval 1 day + interval 1 month, day - day from pg.orders where false
select a // b // c, a % b * c, a - (b - c), a / (b / c), (a + b) * c, -(a - b) from (select 7 a, 3 b, 2 c)
select 10 - 2 - 3, 10 - (2 - 3), 100 / 10 / 2, 100 / (10 / 2), 2 ** 3 ** 2, (2 ** 3) ** 2, 7 // 2 * 2
select id = (select max(id) from pg.orders) and true, (select 1) + (select 2) * 3, not (select true), -(select 1) from pg.orders
select extract(year from date '2020-05-01')::varchar, cast('1' as int) + 1, 1.0::int / 2, 1::double / 3
select a.id from pg.orders a where not a.id = 1 and not a.id in (2) and not exists (select 1 where a.id = 3) and a.id not between 4 and 5
select '{"ax":5}'::json->>'a' || 'x'
select '{"a":5}'::json->>'a' in ('5')
select '[4,5,6]'::json->1 + 1
select ('[4,5,6]'::json->>1)::int + 1
select 1 where '{"a":true}'::json->>'a' and true
select '{"a":5}'::json->>'a'::varchar
select '{"a":{"b":1}}'::json->'a'->'b', '{"a":{"b":1}}'::json->>'$.a.b', '{"a":1}'->>'a'
select '{"a":5}'::json->>'a' between '4' and '6'
select string_agg(distinct c, '|' order by c), max(id) from (select 'x' as c, id from pg.orders) t group by c
select count(distinct customer order by customer), count(amount order by id), count(distinct id order by id desc) filter (where id > 2) from pg.orders
select string_agg(distinct x, '|' order by x), list(distinct x order by x desc) filter (where x is not null) from (select (select max(name) from maria.customers c where c.id = o.customer) as x from pg.orders o)
select string_agg(distinct x, '|' order by x) from (select (select name from maria.customers c where c.id = o.customer and c.id + 0 = o.customer) as x from pg.orders o)
select note.id, (select max(o.id) from pg.orders o where o.id = note.id) from pg.customers note
select id.name, (select count(*) from pg.orders o where o.customer = id.id and o.note in (select c.name from maria.customers c where c.id <> id.id)) from pg.customers id
select (select max(i.attrs.size) from data.items i where i.order_id = o.id), o.id from pg.orders o
select attrs.id, (select max(attrs.size) from data.items i) from pg.customers attrs
select customer, bool_and(id > 0 order by id), bool_or(distinct id > 5), bool_or(id > 2 order by amount desc) filter (where id < 9), bool_and(note = 'a') from pg.orders group by customer
select first(q.a order by q.a) from (select 1.5 as a where false) q
select string_agg(o.id, '|' order by q.b, o.id desc) from pg.orders o, (select 1.5 as b) q
select interval '1 day 2:03:04.5', interval '3 days ago', interval '1 mon', interval '1.5 days', interval '-1 day 2:00', interval '90 minutes'
select id, day + interval '1 month 3 days', day - interval '1 day 02:00', day + interval '2 days ago' from pg.orders where day > date '2024-01-20' - interval '1 mon'
select (id, customer) in (select id, id from maria.customers) from pg.orders
select o.id from pg.orders o where (o.id, o.customer) in (select i.order_id, i.qty from data.items i)
select count(*) from (select distinct on (customer) id from pg.orders) where id > 0
select distinct on (customer) customer from pg.orders
select count(*) from (select distinct on (customer, note) id from pg.orders)
select id from pg.orders o where (o.customer, o.note) not in (select i.order_id, i.product from data.items i where order_id > 0)
select id, (customer, note) in (select customer, max(note) from pg.orders group by customer) t from pg.orders
select o.id from pg.orders o where (customer, amount) in (select customer, max(amount) from pg.orders group by customer)
select o.id from pg.orders o where (o.id, o.id) not in (select c.id, c.id from pg.customers c)
select o.id, l.n from pg.orders o, lateral (select count(*) n from data.items i where i.order_id = o.id) l
select o.id, z from pg.orders o, (select o.id + 1 as z) where z > 2
select * from pg.orders o, lateral (select o.id * 2 as d) l where l.d > 4
select * from pg.orders o left join lateral (select * from data.items i where i.order_id = o.id order by qty limit 1) l on true
select o.id, l.product from pg.orders o, (select i.product, i.order_id from data.items i where i.order_id = o.id and i.qty > 0) l
select o.id, l.n, l.m from pg.orders o, lateral (select count(*) n, max(qty) m, count(qty) filter (where qty > 1) k from data.items i where i.order_id = o.id) l where l.n < 2
select o.id, l.n + 1 from pg.orders o cross join lateral (select count(*) + o.id n from data.items i where i.order_id = o.id) l
select c.name, l.id from maria.customers c left join lateral (select o.id from pg.orders o where o.customer = c.id order by o.amount desc nulls last, o.id limit 1) l on true
select c.name, l.id from maria.customers c join lateral (select o.id from pg.orders o where o.customer = c.id order by o.id limit 1 offset 1) l on l.id > 1
select c.name, l.id from maria.customers c left join lateral (select o.id, o.note from pg.orders o where o.customer = c.id) l on l.note = 'a'
select c.name, l.customer, l.s from maria.customers c, lateral (select o.customer, sum(amount) s from pg.orders o where o.customer = c.id group by o.customer having count(*) > 1) l
select c.name, l.note, l.n from maria.customers c left join lateral (select o.note, count(*) n from pg.orders o where o.customer = c.id group by o.note) l on true
select c.name, l.note from maria.customers c, lateral (select distinct note from pg.orders o where o.customer = c.id and o.note is not null) l
select c.name, l.id, l.r from maria.customers c, lateral (select id, rank() over (order by amount) r from pg.orders o where o.customer = c.id) l
select c.name, l.id from maria.customers c, lateral (select o.id from pg.orders o join data.items i on i.order_id = o.id where o.customer = c.id and i.qty > c.id) l
select c.name, l.id from maria.customers c, lateral (select o.id from pg.orders o left join data.items i on i.order_id = o.id and i.qty > c.id where o.customer = c.id) l
select c.name, l.id from maria.customers c, lateral (select o.id from pg.orders o where o.customer = c.id and exists (select 1 from data.items i where i.order_id = o.id)) l
select c.name, l.id, k.n from maria.customers c, lateral (select o.id from pg.orders o where o.customer = c.id) l, lateral (select count(*) n from data.items i where i.order_id = l.id) k
select c.name, p.name, l.id from maria.customers c, pg.customers p, lateral (select o.id from pg.orders o where o.customer = c.id and o.id > p.id) l
select c.name, l.id, p.name from maria.customers c, lateral (select o.id from pg.orders o where o.customer = c.id) l left join pg.customers p on p.id = l.id
select c.name, l.d from maria.customers c, lateral (select o.id as d from (select id, customer from pg.orders where amount > 6) o where o.customer = c.id) l where l.d < 6
select c.id, l.x from maria.customers c, lateral (select l2.x from pg.orders o, lateral (select o.amount + c.id as x) l2 where o.customer = c.id) l
select c.id, (select l.n from pg.customers p, lateral (select count(*) n from pg.orders o where o.customer = p.id) l where p.id = c.id) from maria.customers c
select c.name, l.s from maria.customers c left join lateral (select sum(o.amount) s, count(*) n from pg.orders o where o.customer = c.id) l on true where l.n > 0
select c.name, l.m from maria.customers c, lateral (select max(note) m, min(note) from pg.orders o where c.id = o.customer and o.id > 1) l(m, x)
select o.id, l.a, l.b from pg.orders o, lateral (select o.id + 1 as a, 'x' as b) l
select a.id, b.id, l.qty from pg.customers a, pg.orders b left join lateral (select i.qty from data.items i where i.order_id = a.id) l on l.qty <= b.id
select a.id, b.id, l.n from pg.customers a, pg.orders b join lateral (select count(*) n from data.items i where i.order_id = a.id and i.qty = b.id) l on true
select c.id, l.x from maria.customers c, lateral (select list(id) x from (select id from pg.orders o where o.customer = c.id order by id desc)) l
select a.id, b.id from pg.orders a asof join pg.orders b on a.customer = b.customer and a.id > b.id
select * from (select id, customer from pg.orders where amount > 6) a asof join (select customer, id from pg.orders where note is not null) b on a.customer = b.customer and a.id > b.id where a.id > 1
select a.id, b.id from pg.orders a asof left join pg.orders b on a.customer = b.customer and a.id > b.id where b.note = 'a' and a.note = 'b'
select a.id, b.id from pg.orders a asof left join pg.orders b on a.id > b.id where a.id > 1 and b.id > 1
select a.id, customer, id, b.id from pg.orders a asof left join (select customer, id + 1 as id from pg.orders) b using (customer, id)
select * from pg.orders a asof join (select customer, id from pg.orders) b using (customer, id)
select a.id, b.id from pg.orders a asof left join (select * from pg.orders where customer = 2) b on a.customer = b.customer and b.id <= a.id - 1 order by a.id limit 3
select a.id, c.name, b.id from pg.orders a asof join pg.orders b on a.customer = b.customer and a.id < b.id join maria.customers c on c.id = b.customer
select b.note, count(*), sum(a.amount) from pg.orders a asof left join pg.orders b on a.customer = b.customer and a.id > b.id group by b.note
select a.id from pg.orders a asof left join pg.orders b on a.customer = b.customer and a.id > b.id where b.id is null
select a.id, b.id from (select id, 1 as one from pg.orders) a asof left join pg.orders b on a.one = b.customer and a.id > b.id
select c.id, l.x, l.y from maria.customers c, lateral (select a.id x, b.id y from pg.orders a asof join pg.orders b on a.customer = b.customer and a.id > b.id where a.customer = c.id) l
select id from maria.customers c where exists (select 1 from pg.orders a asof join pg.orders b on a.customer = b.customer and a.id > b.id where a.customer = c.id and b.amount > 1)
select c.id, o.id from maria.customers c asof join pg.orders o on c.id >= o.id where o.id in (select order_id from data.items)
select id as "Id", note as NOTE from pg.orders
select "Id" from (select id as "Id" from pg.orders)
select id as "Id" from pg.orders union all select id from maria.customers
select id as ID, id as id from pg.orders
with q as (select id as "Id" from pg.orders) select q.* , q.id as ID from q
select json_array_length(j -> 't'), json_type(j -> 't'), json_keys(j -> 'u'), to_json(j -> 't'), len(j -> 't') from (select '{"t": [1, 2], "u": {"v": "w"}}' as j from pg.orders)
select coalesce(j -> 't', '0'), coalesce(j -> 'u' -> 'v', '0'), coalesce(j -> 'u' ->> 'v', 'x'), coalesce((j) -> 't', '0') from (select '{"t": [1, 2], "u": {"v": "w"}}' as j from pg.orders)
select note, max(j -> 't'), max(j -> 't' order by note), json_extract(max(j -> 'u'), '$.v') from (select note, '{"t": [1, 2], "u": {"v": "w"}}' as j from pg.orders) group by note
select list_transform([j], lambda x: x -> 't'), list_transform([j], lambda x: coalesce(x -> 't', '0')) from (select '{"t": [1, 2]}' as j from pg.orders)
select list_reduce([id, 2], lambda a, b: a + b), list_filter([id, 2], lambda a, i: a > i) from pg.orders
select reduce([id, 2], lambda a, b: a + b), filter([id, 2], lambda x: x > 1) from pg.orders
