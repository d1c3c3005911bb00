//! What a file adds: it survives, is guarded, and fills up.

use crate::kit::{
    announcer, announcing, answer, ask, at, dead, delivered, feed, fresh_event_id, lease,
    open_file, open_with, outbox, retry_at, routed, secs, traffic, wait, waits,
};
use answerback::contract::{Event, WaitState};
use answerback::core::{AnswerOutcome, OutboxState, PublishOutcome, Rules};
use answerback::store::sqlite::{Location, OpenError, SqliteOptions, SqliteStore};
use answerback::store::{
    Depth, FeedEvent, KeptReply, Retention, Settled, Settlement, Store, StoreError,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

fn try_open(path: &Path) -> Result<SqliteStore, OpenError> {
    SqliteStore::open(SqliteOptions {
        location: Location::File(path.to_owned()),
        rules: Arc::new(Rules::default()),
        mint: Arc::new(fresh_event_id),
    })
}

#[tokio::test]
async fn a_damaged_file_is_told_once_and_with_a_cure() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.db");
    open_file(&path, Rules::default()).close().await;
    let mut bytes = std::fs::read(&path).unwrap();
    // The first page has the header; what follows is noise.
    bytes[4_096..].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    let error = try_open(&path).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    assert!(std::error::Error::source(&error).is_none(), "all is said in one sentence");
    let told = error.to_string();
    assert_eq!(told.matches("malformed").count(), 1, "{told}");
    assert!(told.contains("restore it from a backup"), "{told}");
}

#[tokio::test]
async fn everything_survives_a_restart() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.db");
    let rules = || routed(&["!a", "b*"], "r");
    let store = open_file(&path, rules());
    ask("t", "q1").event("e1").expires(at(50)).send(&store, at(0)).await;
    ask("t", "q2").send(&store, at(1)).await;
    ask("t", "q3").send(&store, at(2)).await;
    let b = lease(&store, &announcer("b"), 9, at(2)).await;
    store.settle(vec![dead(&b[0]), retry_at(&b[1], at(30))], at(3)).await.unwrap();
    let a = lease(&store, &announcer("a"), 9, at(2)).await;
    store.answer(answer("t", "q2", "[2]"), at(4)).await.unwrap();
    store.set_paused(announcer("b"), true).await.unwrap();
    let reply = KeptReply { body_hash: [7; 32], status: 202, body: b"x".to_vec() };
    store.keep_reply("k".to_owned(), reply.clone(), at(4)).await.unwrap();
    let (all, sent, depths) = (waits(&store).await, traffic(&store).await, store.depths().await);
    let kept = wait(&store, "t", "q2").await;
    store.close().await;

    let store = open_file(&path, rules());
    assert_eq!(waits(&store).await, all);
    assert_eq!(traffic(&store).await, sent);
    assert_eq!(*wait(&store, "t", "q2").await, *kept);
    let by = |d: &Depth| d.destination.clone();
    let (mut before, mut after) = (depths.unwrap(), store.depths().await.unwrap());
    before.sort_by_key(by);
    after.sort_by_key(by);
    assert_eq!(before, after);
    assert_eq!(store.paused().await.unwrap(), [announcer("b")]);
    assert_eq!(store.kept_reply("k".to_owned(), at(5)).await.unwrap(), Some(reply));
    assert_eq!(store.next_deadline().await.unwrap(), Some(at(50)));
    let again = ask("t", "q1").event("e1").send(&store, at(5)).await;
    assert!(matches!(again.outcome, PublishOutcome::Duplicate(_)));
    // Leases ended with the process that had them.
    let lost = Settlement { id: a[0].id, lease: a[0].lease, settled: Settled::Delivered };
    store.settle(vec![lost], at(5)).await.unwrap();
    let fresh = lease(&store, &announcer("a"), 9, at(5)).await;
    assert_eq!((fresh.len(), fresh[0].id), (1, a[0].id));
    store.close().await;
}

/// What the first version made.
fn of_the_first_version(path: &Path, rows: &str) {
    const FIRST: &str = include_str!("../../src/store/sqlite/migrations/V1__first.sql");
    let mut file = rusqlite::Connection::open(path).unwrap();
    let application = i32::from_be_bytes(*b"answ");
    file.execute_batch(&format!(
        "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA application_id = {application}; \
         PRAGMA journal_mode = WAL;"
    ))
    .unwrap();
    let first = [refinery::Migration::unapplied("V1__first", FIRST).unwrap()];
    refinery::Runner::new(&first).run(&mut file).unwrap();
    file.execute_batch(rows).unwrap();
}

#[tokio::test]
async fn a_file_of_the_first_version_goes_on_and_tells_of_what_is_still_asked() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.db");
    let created = at(0).millis();
    let wait_of = |id: u32, question: &str, state: u32, closed: &str| {
        format!(
            "INSERT INTO waits (id, tenant, thread_id, question_id, generation, choice, state, \
             event_id, created_at, closed_at, envelope) VALUES ({id}, 'default', 't', '{question}', \
             1, 1, {state}, 'e{id}', {created} + {id}, {closed}, CAST('{{\"type\":\"wait.created\",\
             \"thread_id\":\"t\",\"question_id\":\"{question}\",\"question\":\"sure?\"}}' AS BLOB));"
        )
    };
    let rows = [
        wait_of(3, "q3", 1, "NULL"),
        wait_of(4, "q4", 4, &created.to_string()),
        wait_of(7, "q7", 1, "NULL"),
        "INSERT INTO destinations (id, kind, name) VALUES (1, 'announcer', 'a');\
         INSERT INTO outbox (wait, destination, event, repeat, state, queued_at, next_attempt_at) \
         VALUES (3, 1, 0, 0, 1, 0, 0), (7, 1, 0, 0, 1, 0, 0);"
            .to_owned(),
    ];
    of_the_first_version(&path, &rows.concat());

    let store = open_file(&path, announcing(&["a"]));
    assert_eq!(waits(&store).await.len(), 3);
    let told = |events: &[FeedEvent]| {
        let short = |e: &FeedEvent| (e.wait.id.0, e.event, e.at, e.event_id.clone());
        events.iter().map(short).collect::<Vec<_>>()
    };
    let before = [
        (3, Event::Created, at(0).after(Duration::from_millis(3)), None),
        (7, Event::Created, at(0).after(Duration::from_millis(7)), None),
    ];
    assert_eq!(told(&feed(&store, None).await), before);
    assert_eq!(lease(&store, &announcer("a"), 9, at(1)).await.len(), 2);
    let accepted = store.answer(answer("t", "q7", "1"), at(2)).await.unwrap();
    assert_eq!(accepted.outcome, AnswerOutcome::Accepted);
    let again = ask("t", "q3").event("e3").send(&store, at(2)).await;
    assert!(matches!(again.outcome, PublishOutcome::Duplicate(_)));
    let events = feed(&store, None).await;
    assert_eq!(told(&events[..2]), before);
    assert_eq!((events[2].wait.id.0, events[2].event, events.len()), (7, Event::Answered, 3));
    store.close().await;
    // Opened once more, nothing is filled in again.
    let store = open_file(&path, announcing(&["a"]));
    assert_eq!(told(&feed(&store, None).await), told(&events));
}

#[tokio::test]
async fn a_second_daemon_is_told_who_has_the_file() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.db");
    let store = open_file(&path, announcing(&[]));
    let error = try_open(&path).unwrap_err();
    let pid = std::process::id().to_string();
    assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&pid) && text.contains("a.db"), "{text}");
    store.close().await;
    try_open(&path).unwrap();
}

#[tokio::test]
async fn what_is_in_the_way_is_said_with_its_cure() {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    let refused = |name: &str| try_open(&path(name)).unwrap_err();
    std::fs::write(path("text.db"), "not a database, but long enough to be looked at".repeat(50))
        .unwrap();
    assert!(matches!(refused("text.db"), OpenError::Foreign { .. }));
    let other = rusqlite::Connection::open(path("other.db")).unwrap();
    other.execute_batch("CREATE TABLE notes (text TEXT)").unwrap();
    assert!(matches!(refused("other.db"), OpenError::Foreign { .. }));
    assert!(matches!(refused("missing/a.db"), OpenError::File { .. }));
    std::fs::create_dir(path("directory.db")).unwrap();
    assert!(matches!(refused("directory.db"), OpenError::File { .. }));
    try_open(&path("newer.db")).unwrap().close().await;
    let newer = rusqlite::Connection::open(path("newer.db")).unwrap();
    newer
        .execute(
            "INSERT INTO refinery_schema_history (version, name, applied_on, checksum) \
             VALUES (999, 'later', '2030-01-01T00:00:00Z', '1')",
            [],
        )
        .unwrap();
    let error = refused("newer.db");
    assert!(matches!(error, OpenError::Newer { found: 999, .. }), "{error:?}");
    assert!(error.to_string().contains("install"), "{error}");
}

#[cfg(unix)]
#[tokio::test]
async fn nobody_else_may_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let directory = TempDir::new().unwrap();
    let store = open_file(&directory.path().join("a.db"), announcing(&[]));
    ask("t", "q").send(&store, at(0)).await;
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.path());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_and_loses_nothing_and_recovers() {
    let directory = TempDir::new().unwrap();
    let store = Arc::new(open_file(&directory.path().join("a.db"), announcing(&["a"])));
    let big = format!("\"{}\"", "x".repeat(20_000));
    ask("t", "first").send(&*store, at(0)).await;
    store.limit_pages(200).await.unwrap();
    let mut acknowledged = vec!["first".to_owned()];
    let mut refused = 0;
    for n in 0..100 {
        let question = format!("q{n}");
        let asked = ask("t", &question).question(&big).publish();
        match store.publish(vec![asked], at(1)).await {
            Ok(_) => acknowledged.push(question),
            Err(StoreError::Unavailable(why)) => {
                assert!(why.contains("full"), "{why}");
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 0 && acknowledged.len() > 5, "{refused} {}", acknowledged.len());
    // Reading goes on, and so does leasing.
    assert_eq!(waits(&*store).await.len(), acknowledged.len());
    let out = lease(&*store, &announcer("a"), 500, at(2)).await;
    assert_eq!(out.len(), acknowledged.len());
    store.limit_pages(100_000).await.unwrap();
    store.settle(out.iter().map(delivered).collect(), at(3)).await.unwrap();
    ask("t", "last").question(&big).send(&*store, at(4)).await;
    acknowledged.push("last".to_owned());
    let kept: Vec<_> = waits(&*store).await.into_iter().map(|(question, ..)| question).collect();
    assert_eq!(kept, acknowledged);
    assert!(waits(&*store).await.iter().all(|(.., state)| *state == WaitState::Open));
    let rows = outbox(&*store).await;
    let delivered = rows.iter().filter(|row| row.state == OutboxState::Delivered).count();
    assert_eq!(delivered, acknowledged.len() - 1);
    let depths = store.depths().await.unwrap();
    assert_eq!((depths.len(), depths[0].queued), (1, 1), "what was rolled back is not counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_grows_is_moved_into_the_file_beside_the_writer() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.db");
    let store = open_file(&path, announcing(&[]));
    let big = format!("\"{}\"", "x".repeat(500_000));
    for n in 0..60 {
        ask("t", &format!("q{n}")).question(&big).send(&store, at(0)).await;
    }
    let grown = std::fs::metadata(&path).unwrap().len();
    assert!(grown > 4_000_000, "{grown}");
    store.close().await;
    let log = std::fs::metadata(directory.path().join("a.db-wal"));
    assert!(log.is_err() || log.unwrap().len() == 0, "all of it at the end");
    let store = open_file(&path, announcing(&[]));
    assert_eq!(waits(&store).await.len(), 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_forgotten_gives_its_space_back() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.db");
    let size = || std::fs::metadata(&path).unwrap().len();
    let store = open_file(&path, announcing(&[]));
    let big = format!("\"{}\"", "x".repeat(200_000));
    for n in 0..40 {
        ask("t", &format!("q{n}")).question(&big).send(&store, at(0)).await;
        store.cancel(wait(&store, "t", &format!("q{n}")).await.id, at(1)).await.unwrap();
    }
    store.close().await;
    let full = size();
    assert!(full > 8_000_000, "{full}");
    let store = open_file(&path, announcing(&[]));
    let retention =
        Retention { closed: secs(10), dead: secs(10), tombstones: secs(1_000), replies: secs(10) };
    let mut forgotten = 0;
    for _ in 0..8 {
        forgotten += store.purge(retention, 10, at(100)).await.unwrap();
    }
    assert_eq!(forgotten, 40);
    store.close().await;
    assert!(size() < full / 2, "{} of {full}", size());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_inside_harms_only_whoever_caused_it() {
    let armed = Arc::new(AtomicBool::new(false));
    let mint = {
        let armed = armed.clone();
        Arc::new(move || {
            assert!(!armed.load(Ordering::SeqCst), "this panic is part of the test");
            fresh_event_id()
        })
    };
    let store = Arc::new(open_with(Location::Memory, routed(&["a"], "r"), mint));
    ask("t", "q").send(&*store, at(0)).await;
    armed.store(true, Ordering::SeqCst);
    // Only an answer needs a fresh id; the publishes beside it do not.
    let mut tasks = Vec::new();
    for n in 0..60 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            if n == 30 {
                let refused = store.answer(answer("t", "q", "1"), at(1)).await;
                assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
            } else {
                ask("t", &format!("q{n}")).send(&*store, at(1)).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(waits(&*store).await.len(), 60);
    assert_eq!(store.depths().await.unwrap()[0].queued, 60);
    armed.store(false, Ordering::SeqCst);
    let accepted = store.answer(answer("t", "q", "1"), at(2)).await.unwrap();
    assert_eq!(accepted.outcome, AnswerOutcome::Accepted);
}
