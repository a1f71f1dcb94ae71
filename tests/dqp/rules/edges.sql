-- Queries at the edges of the rules: where one has to leave a query as it is, and where it takes a rare way. One a line;
-- what is here is executed before and after all rules, and both answers must be equal.

select i.id from pg.item i where (select max(e.k) from maria.event e) in (select n.k from lite.note n where n.id = i.id)
select i.id from pg.item i where (i.id, i.k) in (select e.id, e.k from maria.event e)
select i.id from pg.item i where exists (select 1 from maria.event e where e.k + cast(random() as integer) * 0 = i.k)
select i.id from pg.item i where exists (select sum(e.k + i.k) from maria.event e where e.k = i.k group by e.id)
select i.id from pg.item i where exists (select e.k from maria.event e where e.k > i.k group by e.k having count(*) > 1)
select i.id from pg.item i where i.id in (select row_number() over (order by e.id) from maria.event e where e.k = i.k)
select i.id from pg.item i where exists (select 1 from maria.event e full join lite.note n on e.id = n.id where e.k = i.k)
select i.id from pg.item i where exists (select 1 from maria.event e left join (select n.id from lite.note n where n.k = i.k) m on m.id = e.id where e.k = i.k)
select i.id from pg.item i where exists (select 1 from maria.event e left join lite.note n on n.id = e.id and n.k = i.k where e.k = i.k)
select i.id, (select count(*) from maria.event e where e.k + i.k = e.id) n from pg.item i
select i.id, sum((select max(e.k) from maria.event e)) over (order by i.id) n from pg.item i
select i.id, (select row_number() over (order by e.k) from maria.event e where e.id = i.id) n from pg.item i
select i.id, (select m + 1 from (select max(e.k) * 2 m from maria.event e where e.id = i.id) t) n from pg.item i
select i.id, (select count(*) from maria.event e where e.id = i.id group by e.k) n from pg.item i
select i.id, (select sum(e.k + i.k) from maria.event e where e.id = i.id) n from pg.item i
select i.id, (select bit_xor(e.id) from maria.event e where e.k = i.k) n from pg.item i
select i.id, (select (select count(*) from lite.note n where n.id = e.id and n.k = i.k) from maria.event e where e.id = i.id) n from pg.item i
select i.id, (select (select max(n.k) from lite.note n where n.id = i.id and n.k = e.k) from maria.event e where e.id = 3) n from pg.item i
select i.id, (select e.k from maria.event e where e.id = i.id and e.k > 2) n from pg.item i
select i.id, (select g.n from (select e.k, count(*) n from maria.event e group by e.k) g where g.k = i.k) n from pg.item i
select i.id, (select u.n from (select 1 k, 'a' n union all select 2, 'b') u where u.k = i.k) n from pg.item i
select i.id, (select a.m + b.m from (select max(k) m from pg.item) a, (select max(k) m from maria.event) b) n from pg.item i
select i.id, (select 7) n, (select max(e.k) from maria.event e order by 1 limit 1) m from pg.item i
select i.id from pg.item i where 1 not in (select e.id from maria.event e)
select i.id from pg.item i where i.k + 1 not in (select e.id from maria.event e)
select i.id from (select * from pg.item where k is not null) i where i.k not in (select e.k from maria.event e where e.k is not null)
select i.id from (select id, k from pg.item where k is not null order by id limit 20) i where i.k not in (select distinct e.id from maria.event e)
select i.id from pg.item i left join maria.event b on b.id = i.id where b.id not in (select e.id from maria.event e)
select i.id from pg.item i right join maria.event b on b.k = i.k where b.id not in (select e.id from lite.note e)
select t.g, count(*) n from (select i.k g, row_number() over (order by i.id) r from pg.item i join maria.event e on i.k = e.k) t group by t.g
select t.g, count(*) n from (select i.k + 1 g from pg.item i join maria.event e on i.k = e.k) t group by rollup (t.g)
select t.g, string_agg(t.n, ',' order by t.c, t.n) n from (select i.k g, i.name n, 1 c from pg.item i join maria.event e on i.k = e.k) t group by t.g
select t.k, count(distinct t.s) n, sum(distinct t.s) m from (select k, s from pg.item union all select k, s from duck.gauge) t group by t.k
select t.k, max(t.d) m from (select k, d from pg.item union select k, d from pg.tag) t group by t.k
select i.k, count(e.d) n, avg(e.id) a, sum(e.id) s, count(i.d) c from pg.item i join maria.event e on i.k = e.k group by i.k
select e.k, count(i.d) n, avg(i.id) a, avg(i.amt) m from pg.item i join maria.event e on i.k = e.k group by e.k
select i.id from pg.item i where i.k between (select 1) and 2 + 1
select i.id from pg.item i where i.d < date '2020-01-31' + interval '1' month or i.d < date '9999-12-31' + interval '2' day
select i.id from pg.item i where i.d < timestamp '2020-01-01 00:00:00' + interval '1' century
select i.id from pg.item i where i.k = 3 or (i.k = 3 and i.id > 5)
select i.id from pg.item i where not (i.k = 3 or i.id > 5) and not (not (i.k is distinct from 7)) and not (i.s = 1 and i.k = 1) and not (i.k = i.s or 1 = 2)
select i.id from pg.item i join maria.event e on (i.k = e.k or (i.k = 3 and e.id < 5)) and not (i.id = e.id)
select i.id, jaccard(i.name, 'abc') n from pg.item i order by i.id limit 3
select i.id from (select i.id, jaccard(i.name, 'abc') n from pg.item i) i where i.id > 3
select i.id from (select i.id, jaccard(i.name, 'abc') n from pg.item i) i where i.id > 3 and i.n >= 0
select i.id, jaccard(i.name, 'abc') + jaccard(i.name, 'abc') n from pg.item i
select i.id, case when i.k = 1 then jaccard(i.name, 'abc') when i.k = 2 then jaccard(i.name, 'b') end n from pg.item i
select i.id from pg.item i where i.k = 1 and jaccard(i.name, 'abc') >= 0
select i.id from pg.item i join (maria.event e join lite.note n on e.id = n.id and e.k > 1) on i.k = e.k where n.k < 100
select i.id from pg.item i where exists (select 1 from maria.event e where e.k = i.k and e.id > i.id)
select i.id from pg.item i where exists (select 1 from maria.event e where e.k = i.k and e.id > 5 + 1)
select i.id from pg.item i where exists (select 1 from maria.event e where e.k = i.k and e.id > i.id and e.k + cast(random() as integer) * 0 = i.k)
select i.id from pg.item i where not exists (select 1 from maria.event e join lite.note n on n.id = e.id where e.k = i.k and n.id < i.id)
select 1 one, i.id from pg.item i order by one limit 5
select n.id from (select i.id, row_number() over (order by i.id) r from pg.item i) n order by n.r, n.id limit 5
select i.id from pg.item i where i.d between '2024-01-01 12:00' and i.ts
select i.id from pg.item i where not i.d between '2024-01-01' and date '2024-02-29' + interval 1 month
select i.id from pg.item i where i.k between 1.5::float and '1.5' or i.k between '5' and i.s or '5' between i.id and i.k
select i.id, '2024-02-29 12:00' between i.d and i.ts b, '2024-02-29' between i.d and i.d c from pg.item i
select i.id, '9' between i.k and '10' b, '2024-02-29 12:00' between i.d and '2024-02-29' d from pg.item i
select i.id from pg.item i, maria.event e where i.s < (select count(*) from lite.note n) or (i.s > 1 and e.s = 3)
select i.id, i.e from (select id, not starts_with(name, 'a') e from pg.item) i where i.e is not null
select i.id, i.e from (select id, not starts_with(name, 'a') e from pg.item) i where i.e is null
select i.id from (select id, k in (3, id) e from pg.item) i where 'x' || i.e = 'xtrue'
select i.id from (select id, k between 2 and 5 e from pg.item) i where i.e || 'x' = 'truex'
select a.k g, a.x, i.id y from (select k, count(*) x from maria.event group by k) a join pg.item i on a.k = i.id where i.id in (3, 5, 8) union all select 0, 0, 0
select e.id, e.k, i.id m from maria.event e join pg.item i on i.id = e.id except select k, id, 0 from pg.item
