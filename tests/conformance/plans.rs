//! How PostgreSQL goes about the store's statements: none may read a whole table, however large it
//! has grown. The server itself tells the plan of every statement that the store sends.

use crate::kit::{
    announcer, answer, any_wait, ask, at, days, dead, delivered, feed_request, lease,
    lease_request, open_postgres, retry_at, route, routed, secs, settled, tenant, thread, wait,
};
use answerback::contract::WaitState;
use answerback::core::{Destination, Name, OutboxState};
use answerback::store::{
    KeptReply, OutboxFilter, Place, Retention, Retry, Settled, Store, WaitFilter, WaitQuery,
};
use answerback_testkit::postgres::{Database, Server};
use std::collections::BTreeSet;
use std::time::Duration;

/// A table of a hundred thousand rows each, as years would leave them: most of it over, some queued,
/// some waiting in lines, some to be forgotten.
const FILL: &str = "
    INSERT INTO waits (id, identity, generation, rest_hash, question_hash, choice, state, bytes,
        created_at, expires_at, closed_at, tenant, thread_id, question_id, event_id, envelope)
    SELECT n, substring(sha256(('i' || n)::BYTEA), 1, 24), 1,
        substring(sha256(('r' || n)::BYTEA), 1, 16), substring(sha256(('q' || n)::BYTEA), 1, 16), 1,
        CASE WHEN n % 10 = 0 THEN 1 ELSE 2 END, 300, {now} - n,
        CASE WHEN n % 20 = 0 THEN {now} + 86400000 + n END,
        CASE WHEN n % 10 > 0 THEN CASE WHEN n <= 1000500 THEN {now} - 40 * 86400000::BIGINT + n
            ELSE {now} - n END END,
        'default', 't' || n, 'q' || n, 'e' || n, repeat('x', 300)::BYTEA
    FROM generate_series(1000001, 1100000) AS n;
    INSERT INTO outbox (id, wait, destination, due_at, queued_at, next_attempt_at, finished_at,
        order_key, repeat, event, state)
    SELECT n, n, CASE WHEN n % 2 = 0 THEN {a} ELSE {b} END, {now} - n, {now} - n, {now} - n,
        CASE WHEN n % 10 > 1 THEN {now} - n END,
        CASE WHEN n % 2 = 1 THEN CASE WHEN n % 10 = 1 AND n % 100 > 1 THEN n / 100 ELSE -n END END,
        0, 0,
        CASE n % 10 WHEN 0 THEN 1 WHEN 1 THEN CASE WHEN n % 100 > 11 THEN 0 ELSE 1 END WHEN 2 THEN 3
            WHEN 3 THEN 4 ELSE 2 END
    FROM generate_series(1000001, 1100000) AS n;
    INSERT INTO commits (id, events, first_place, last_place)
        SELECT n, 1, n, n FROM generate_series(1000001, 1100000) AS n;
    INSERT INTO events (commit_id, nth, wait, at, event)
        SELECT n, 0, n, {now} - n, 0 FROM generate_series(1000001, 1100000) AS n;
    UPDATE feed SET last = 1100000;
    INSERT INTO publishes (wait, event_hash)
        SELECT n, substring(sha256(('p' || n)::BYTEA), 1, 16) FROM generate_series(1000001, 1100000) AS n;
    INSERT INTO forgotten (hash, generation, choice, at)
        SELECT substring(sha256(('f' || n)::BYTEA), 1, 16), 1, 1, {now} - n * 1000
        FROM generate_series(1000001, 1100000) AS n;
    INSERT INTO replies (scope_hash, body_hash, status, body, kept_at)
        SELECT substring(sha256(('s' || n)::BYTEA), 1, 16), sha256('b'), 200, 'b', {now} - n
        FROM generate_series(1000001, 1100000) AS n;
    SELECT setval('wait_ids', 1100000), setval('outbox_ids', 1100000),
        setval(pg_get_serial_sequence('commits', 'id'), 1100000);
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_statement_of_the_store_reads_a_whole_table() {
    let (server, database) = talkative().await;
    let store = open_postgres(database.url(), routed(&["a", "!b*"], "r")).await;
    fill(&*store, &database.connect().await).await;
    let before = server.log().len();
    assert!(drive(&*store, "t-").await > 0);
    judge(&server.log()[before..]);
    store.close().await;
}

/// Statements that are prepared keep the plan of a time when reading all there is was cheap, be it by
/// way of an index: so after a while they are planned anew.
#[tokio::test]
async fn nor_does_one_that_was_planned_when_there_was_next_to_nothing() {
    let (server, database) = talkative().await;
    let store = open_postgres(database.url(), routed(&["a", "!b*"], "r")).await;
    let own = database.connect().await;
    own.batch_execute("ANALYZE").await.unwrap();
    // The server takes to a plan for all values after the fifth time.
    for run in 0..8 {
        drive(&*store, &format!("early{run}-")).await;
    }
    // Without an ANALYZE that would let the server plan anew.
    own.batch_execute(&filling(&own).await).await.unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(10)).await;
    tokio::time::resume();
    let before = server.log().len();
    drive(&*store, "late-").await;
    let log = server.log();
    assert!(log[before..].contains("= ANY ($1)"), "no plan is for all values");
    judge(&log[before..]);
    judge_prepared(&log[before..]);
    store.close().await;
}

/// A server that tells how it goes about every statement.
async fn talkative() -> (Server, Database) {
    let server = Server::start_with(&[
        "shared_preload_libraries=auto_explain",
        "auto_explain.log_min_duration=0",
        "auto_explain.log_analyze=on",
        "auto_explain.log_timing=off",
        "fsync=off",
        "autovacuum=off",
    ])
    .await;
    let database = server.database().await;
    (server, database)
}

/// Looks for plans that read all of a table.
fn judge(log: &str) {
    let plans = log.split("LOG:  duration: ").skip(1).filter(|plan| plan.contains("plan:"));
    let mut seen = 0;
    let mut wrong = BTreeSet::new();
    for plan in plans {
        seen += 1;
        let scans = TABLES.iter().any(|table| plan.contains(&format!("Seq Scan on {table}")));
        // What counts everything has to look at everything that is counted.
        if scans && !plan.contains("GROUP BY destination") {
            wrong.insert(plan.split_once("plan:").map_or("", |(_, plan)| plan).to_owned());
        }
    }
    assert!(seen > 60, "the server told of {seen} statements only");
    assert!(wrong.is_empty(), "{}", wrong.into_iter().collect::<Vec<_>>().join("\n----\n"));
}

/// What a statement of those that come again and again may look at: far more than it gives, and next to
/// nothing of a hundred thousand.
const MOST_ROWS: u64 = 3_000;

/// Looks for plans for all values that go through more rows than they should.
fn judge_prepared(log: &str) {
    let plans = log.split("LOG:  duration: ").skip(1).filter(|plan| plan.contains("plan:"));
    let mut wrong = BTreeSet::new();
    for plan in plans.filter(|plan| plan.contains("($1)") && !plan.contains("count(*)")) {
        let loops = |line: &str| number_after(line, "loops=").unwrap_or(1);
        let mut last = 1;
        let mut most = 0;
        for line in plan.lines() {
            if let Some(rows) =
                line.find("(actual ").and_then(|at| number_after(&line[at..], "rows="))
            {
                last = loops(line);
                most = most.max(rows * last);
            }
            if let Some(removed) = number_after(line, "Rows Removed by Filter: ") {
                most = most.max(removed * last);
            }
        }
        if most > MOST_ROWS {
            wrong.insert(format!("{most} rows: {plan}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.into_iter().collect::<Vec<_>>().join("\n----\n"));
}

/// The number that follows a word.
fn number_after(line: &str, word: &str) -> Option<u64> {
    let (_, rest) = line.split_once(word)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

const TABLES: [&str; 7] =
    ["waits", "outbox", "events", "commits", "publishes", "forgotten", "replies"];

async fn fill(store: &dyn Store, own: &tokio_postgres::Client) {
    for destination in [announcer("a"), announcer("b"), route("r"), Destination::Pull] {
        store.set_paused(destination, false).await.unwrap();
    }
    own.batch_execute(&filling(own).await).await.unwrap();
    own.batch_execute("ANALYZE").await.unwrap();
}

/// What fills the tables, with the numbers of this database.
async fn filling(own: &tokio_postgres::Client) -> String {
    let number = async |name: &str| -> i64 {
        let sql = "SELECT id FROM destinations WHERE name = $1";
        own.query_one(sql, &[&name]).await.unwrap().get(0)
    };
    FILL.replace("{now}", &at(0).millis().to_string())
        .replace("{a}", &number("a").await.to_string())
        .replace("{b}", &number("b").await.to_string())
}

/// Every operation there is, in the ways that lead to statements of their own. `run` tells the waits of
/// one call from those of others. Gives how many waits were forgotten.
async fn drive(store: &dyn Store, run: &str) -> u64 {
    let name = |n: u32| format!("{run}{n}");
    let batch = (0..20).map(|n| ask(&name(n % 7), &format!("q{n}")).publish());
    store.publish(batch.collect(), at(0)).await.unwrap();
    // A redelivery, another question, and one past its deadline soon.
    ask(&name(0), "q0").event("again").send(store, at(1)).await;
    ask(&name(0), "q0").event("again").send(store, at(1)).await;
    ask(&name(1), "q1").question("2").send(store, at(1)).await;
    ask(&name(9), "q1").expires(at(2)).send(store, at(1)).await;
    store.answer(answer(&name(2), "q2", "1"), at(1)).await.unwrap();
    store.answer(answer("nobody", "q2", "1"), at(1)).await.unwrap();
    ask(&name(2), "q2").event("resent").send(store, at(1)).await;
    store.cancel(wait(store, &name(3), "q3").await.id, at(1)).await.unwrap();
    store.time_out(50, at(3)).await.unwrap();
    store.next_deadline().await.unwrap();
    settle(store).await;
    list(store, &name).await;
    operate(store, &name).await;
    let retention = Retention {
        closed: days(30),
        dead: days(30),
        tombstones: secs(99_000),
        replies: secs(3_600),
    };
    let forgotten = store.purge(retention, 50, at(10)).await.unwrap();
    let mut after = Place(1_099_000);
    for _ in 0..3 {
        let feed = store.feed(feed_request(None, after, 50)).await.unwrap();
        after = feed.next;
    }
    store.feed(feed_request(Some(&name(0)), Place(1_099_900), 50)).await.unwrap();
    store.moved(Place(1_000_500), 100).await.unwrap();
    store.feed_end().await.unwrap();
    store.probe(at(10)).await.unwrap();
    forgotten
}

async fn settle(store: &dyn Store) {
    for to in [announcer("a"), announcer("b"), route("r")] {
        let out = lease(store, &to, 20, at(3)).await;
        assert!(!out.is_empty());
        let ends = out.iter().enumerate().map(|(n, message)| match n % 4 {
            0 => delivered(message),
            1 => dead(message),
            2 => retry_at(message, at(60)),
            _ => settled(message, Settled::Released),
        });
        store.settle(ends.collect(), at(4)).await.unwrap();
    }
    store.lease(lease_request(&announcer("b"), 5), at(5)).await.unwrap();
}

async fn list(store: &dyn Store, name: &dyn Fn(u32) -> String) {
    let find = |thread_id| WaitQuery {
        tenant: tenant(),
        question_id: crate::kit::question("q0"),
        thread_id,
        generation: None,
    };
    store.find(find(Some(thread(&name(0))))).await.unwrap();
    store.find(find(None)).await.unwrap();
    let few = || WaitFilter { limit: 20, ..any_wait() };
    let before = Some(wait(store, &name(4), "q4").await.id);
    for filter in [
        few(),
        WaitFilter { before, ..few() },
        WaitFilter { states: vec![WaitState::Open], ..few() },
        WaitFilter { states: vec![WaitState::Cancelled], ..few() },
        WaitFilter { thread_id: Some(thread(&name(0))), ..few() },
        WaitFilter { run_id: Some(name(0)), ..few() },
        WaitFilter { announcer: Some(Name::new("a")), ..few() },
        WaitFilter { tenant: ask("t", "q").of("acme").publish().tenant, ..few() },
    ] {
        store.list_waits(filter).await.unwrap();
    }
    let rows = |state| OutboxFilter {
        tenant: tenant(),
        announcements: true,
        state,
        label: None,
        wait: None,
        before: None,
        limit: 20,
    };
    let states = [OutboxState::Queued, OutboxState::Delivered, OutboxState::Dead];
    for state in states.into_iter().chain([OutboxState::Withdrawn]).map(Some).chain([None]) {
        store.list_outbox(rows(state)).await.unwrap();
    }
    for filter in [
        OutboxFilter { wait: before, ..rows(None) },
        OutboxFilter { label: Some("b".to_owned()), ..rows(Some(OutboxState::Queued)) },
        OutboxFilter { announcements: false, ..rows(Some(OutboxState::Dead)) },
    ] {
        store.list_outbox(filter).await.unwrap();
    }
}

async fn operate(store: &dyn Store, name: &dyn Fn(u32) -> String) {
    let dead = OutboxFilter {
        tenant: tenant(),
        announcements: true,
        state: Some(OutboxState::Dead),
        label: Some("b".to_owned()),
        wait: None,
        before: None,
        limit: 1,
    };
    for row in store.list_outbox(dead).await.unwrap().found {
        store.retry(tenant(), Retry::Announcement(row.id), at(6)).await.unwrap();
    }
    store.retry(tenant(), Retry::Announcer(Name::new("b")), at(6)).await.unwrap();
    store.pulled(wait(store, &name(5), "q5").await.id, at(6)).await.unwrap();
    store.depths().await.unwrap();
    store.destinations().await.unwrap();
    store.paused().await.unwrap();
    store.retire(vec![announcer("a"), announcer("b")], at(7)).await.unwrap();
    let reply = KeptReply { body_hash: [0; 32], status: 200, body: Vec::new() };
    store.keep_reply("k".to_owned(), reply, at(8)).await.unwrap();
    store.kept_reply("k".to_owned(), at(8)).await.unwrap();
}
