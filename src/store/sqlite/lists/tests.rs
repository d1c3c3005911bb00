use super::*;
use crate::store::sqlite::open;
use crate::store::sqlite::{Location, SqliteOptions, SqliteStore};
use crate::store::{Listed, Store};
use answerback_contract::{TenantId, WaitState};
use answerback_core::{Name, Rules};

fn store() -> SqliteStore {
    let mint = || EventId::new("minted").unwrap();
    SqliteStore::open(SqliteOptions {
        location: Location::Memory,
        rules: Arc::new(Rules::default()),
        mint: Arc::new(mint),
    })
    .unwrap()
}

/// How SQLite goes about a statement.
fn plan(conn: &Connection, sql: &str) -> String {
    let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let blanks = vec![Value::Null; statement.parameter_count()];
    let steps = statement.query_map(params_from_iter(blanks), |row| row.get::<_, String>(3));
    steps.unwrap().collect::<Result<Vec<_>, _>>().unwrap().join("\n")
}

#[test]
fn lists_walk_and_neither_scan_nor_sort_rows() {
    let conn = open::prepare_memory().unwrap();
    for (sql, by) in [
        (Walk::All.sql(), "SEARCH waits USING INTEGER PRIMARY KEY (rowid<?)"),
        (Walk::Open.sql(), "SEARCH waits USING INDEX waits_open (tenant=? AND rowid<?)"),
        (OutboxWalk::All.sql(), "SEARCH outbox USING INTEGER PRIMARY KEY (rowid<?)"),
        (OutboxWalk::Wait.sql(), "SEARCH outbox USING INDEX outbox_wait (wait=? AND rowid<?)"),
        (
            OutboxWalk::Dead.sql(),
            "SEARCH outbox USING INDEX outbox_dead (destination=? AND rowid<?)",
        ),
    ] {
        assert_eq!(plan(&conn, sql).replace("COVERING ", ""), by, "{sql}");
    }
    // A thread's and a run's few ids are sorted, ids alone.
    for walk in [Walk::Thread, Walk::Run] {
        let plan = plan(&conn, walk.sql());
        assert!(plan.contains("INDEX waits_identity (tenant=? AND thread_id=?)"), "{plan}");
        assert!(!plan.contains("SCAN"), "{plan}");
    }
    let plan_of_run = plan(&conn, Walk::Run.sql());
    assert!(plan_of_run.contains("waits_run (tenant=? AND run_id=?"), "{plan_of_run}");
    let look_ups = plan(&conn, OUTBOX_LOOK_UP);
    assert_eq!(
        look_ups,
        "SEARCH o USING INTEGER PRIMARY KEY (rowid=?)\nSEARCH w USING INTEGER PRIMARY KEY (rowid=?)"
    );
}

#[tokio::test]
async fn a_wait_is_looked_up_by_its_id_whatever_is_filtered_for() {
    let conn = open::prepare_memory().unwrap();
    let store = store();
    store.execute("INSERT INTO waits (id, tenant, thread_id, question_id, generation, choice, state, event_id, created_at, envelope) VALUES (1, 'default', 't', 'q', 1, 1, 1, 'e', 0, CAST('{}' AS BLOB))").await.unwrap();
    let announcer = Destination::Announcer(Name::new("a"));
    store.set_paused(announcer, false).await.unwrap();
    let filter = WaitFilter {
        states: vec![WaitState::Completed, WaitState::Open],
        thread_id: Some(ThreadId::new("t").unwrap()),
        run_id: Some("r".to_owned()),
        tags: vec![("a".to_owned(), "b".to_owned())],
        announcer: Some(Name::new("a")),
        ..any()
    };
    let (sql, values) = look_up(&store.shared, &filter).unwrap();
    assert_eq!(values.len(), conn.prepare(&sql).unwrap().parameter_count());
    let plan = plan(&conn, &sql);
    assert!(plan.starts_with("SEARCH w USING INTEGER PRIMARY KEY (rowid=?)"), "{plan}");
    assert!(plan.ends_with("INDEX outbox_wait (wait=?)"), "{plan}");
    let unknown = WaitFilter { announcer: Some(Name::new("nobody")), ..any() };
    assert!(look_up(&store.shared, &unknown).is_none());
}

fn any() -> WaitFilter {
    WaitFilter::all(TenantId::default_tenant(), 10)
}

/// 30,000 waits, of which the oldest alone is cancelled and has a tag.
const MANY: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000) \
     INSERT INTO waits (id, tenant, thread_id, question_id, generation, choice, state, event_id, \
     created_at, envelope) SELECT i, 'default', 't', 'q' || i, 1, 1, CASE i WHEN 1 THEN 4 ELSE 2 END, \
     'e', 0, CAST('{\"type\":\"wait.created\",\"thread_id\":\"t\",\"question_id\":\"q\",\"question\":1' \
     || CASE i WHEN 1 THEN ',\"tags\":{\"x\":1}}' ELSE '}' END AS BLOB) FROM n";

#[tokio::test]
async fn no_list_looks_at_a_whole_store_in_one_call() {
    let store = store();
    store.execute(MANY).await.unwrap();
    let list = async |filter: WaitFilter| {
        let Listed { found, next } = store.list_waits(filter).await.unwrap();
        (found.iter().map(|wait| wait.id.0).collect::<Vec<_>>(), next.map(|id| id.0))
    };
    let unfiltered = list(any()).await;
    assert_eq!(unfiltered, ((29_991..=30_000).rev().collect(), Some(29_991)));
    let tags = vec![("x".to_owned(), "1".to_owned())];
    for rare in
        [WaitFilter { states: vec![WaitState::Cancelled], ..any() }, WaitFilter { tags, ..any() }]
    {
        let (none, next) = list(rare.clone()).await;
        assert_eq!((none.len(), next), (0, Some(10_001)));
        assert_eq!(list(WaitFilter { before: next.map(WaitId), ..rare }).await, (vec![1], None));
    }
    let other = WaitFilter { tenant: TenantId::new("other").unwrap(), ..any() };
    assert_eq!(list(other).await, (Vec::new(), Some(10_001)), "tenants share the walk");
    let thread = WaitFilter { thread_id: Some(ThreadId::new("u").unwrap()), ..any() };
    assert_eq!(list(thread).await, (Vec::new(), None), "nobody else's are looked at");
    let last = WaitFilter { before: Some(WaitId(3)), ..any() };
    assert_eq!(list(last).await, (vec![2, 1], None));
}
