select id, amount from pg.orders order by amount desc, id
select id, amount from pg.orders order by amount nulls first, id desc
select id, customer from pg.orders order by 2, 1
select id as a, -id as b from pg.orders order by b
select -id as id from pg.orders order by id
select -id as id from pg.orders order by id + 0
select id as x, customer as id from pg.orders order by id, x
select upper(note) as note from pg.orders order by note, 1
select id from pg.orders order by amount * 2 desc, id
select note from pg.orders order by day, id
select * from pg.orders order by all
select id, day from pg.orders order by all desc
select id from pg.orders order by id limit 3
select id from pg.orders order by id limit 3 offset 2
select id from pg.orders order by id offset 4
select id from pg.orders order by amount desc nulls last, id limit 2
select distinct customer from pg.orders order by customer
select distinct customer, city from pg.orders join maria.customers c on c.id = customer order by city, customer limit 2
select customer, sum(amount) s from pg.orders group by customer order by s desc, customer
select customer from pg.orders group by customer order by sum(amount), customer
select customer k, count(*) from pg.orders group by k order by count(*) desc, k limit 2
select customer from pg.orders group by customer order by max(day) desc, 1 nulls first
select id, row_number() over (order by amount, id) rn from pg.orders order by rn
select id from pg.orders order by row_number() over (order by day desc, id desc)
select id from pg.orders order by rank() over (order by customer), id limit 4
select id from pg.orders union all select id from maria.customers order by id desc
select id as x from pg.orders union select id as y from maria.customers order by y
select id as x, note from pg.orders union all select id, name from maria.customers order by -x, note
(select id from pg.orders order by id limit 2) union all (select id from maria.customers order by id desc limit 1) order by 1
(select id from pg.orders order by id desc) limit 2
select * from (select id, amount from pg.orders order by amount desc, id limit 4) order by id
with top as (select id, amount from pg.orders order by amount desc, id limit 3) select * from top order by amount, id
select o.id, c.name from pg.orders o left join maria.customers c on c.id = o.customer order by c.name, o.id
select *, id + 1 as following from pg.orders order by following desc
select id from pg.orders order by (select name from maria.customers c where c.id = customer), id
select note from pg.orders order by note collate nocase, id
select id from pg.orders order by case when note is null then 0 else 1 end, id
select id, id from pg.orders order by 1
select id from pg.orders order by id limit all
select distinct on (customer) customer, id from pg.orders order by customer, id
select distinct on (customer) * from pg.orders o order by customer, o.id desc
select distinct on (1) customer c, id from pg.orders order by c desc nulls last, id desc limit 2 offset 1
select distinct on (note, customer) note, customer, amount from pg.orders order by note, customer, amount desc nulls first
select distinct on (customer % 2) id, sum(amount) over (partition by customer) s from pg.orders order by customer % 2, id
select distinct on (n) customer, count(*) n from pg.orders group by customer order by n, customer
select distinct on (upper(note)) note n, id from pg.orders where id < 6 qualify row_number() over (order by id desc) > 1 order by upper(note), id
select distinct on (c.name) c.name, o.id from maria.customers c left join pg.orders o on o.customer = c.id order by c.name, o.amount desc, o.id
select distinct on (x) * from (select customer x, id y from pg.orders) order by x nulls first, y desc
