//! `answerback migrate`: a store moves from its SQLite file to PostgreSQL, and nobody notices.

use crate::bed::{QUICK, all_of, answer, bare, escaped, http_route, later, published, webhook};
use answerback_testkit::daemon::Setup;
use answerback_testkit::postgres::{Database, database};
use answerback_testkit::{Answer, Api, Daemon, Event, Gate, Receiver, Reply, eventually};
use http::Method;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::Output;
use std::time::Duration;

/// More than are written in one transaction.
const MANY: usize = 2_300;

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Copies a daemon's file into a database.
async fn copy(setup: &Setup, from: &str, to: &Database, more: &[&str]) -> Output {
    let mut args = vec!["migrate", "--from", from, "--to-env", "TARGET"];
    args.extend(more);
    setup.command(&args).env("TARGET", to.url()).output().await.unwrap()
}

fn refused(output: &Output, with: &str) {
    assert_eq!(output.status.code(), Some(1), "{}", err(output));
    assert!(err(output).contains(with), "{}", err(output));
}

/// A question that goes where its tag says.
fn asked(thread: &str, question: &str, to: &str) -> Value {
    let mut envelope = published(thread, question, &format!("event-{question}"));
    envelope["tags"] = json!({"to": to});
    envelope
}

async fn keyed_post(api: &Api, body: &Value) -> Reply {
    let headers = [("content-type", "application/json"), ("idempotency-key", "once")];
    api.send(Method::POST, "/v1/waits", &headers, body.to_string().into()).await
}

const QUESTIONS: [&str; 6] =
    ["q-open", "q-behind", "q-answered", "q-pull", "q-late", "q-cancelled"];

/// All that the API tells of what is stored.
async fn told(api: &Api) -> Vec<Value> {
    let mut all = Vec::new();
    for list in ["waits", "announcements", "deliveries"] {
        all.extend(all_of(api, &format!("/v1/{list}")).await);
    }
    for question in QUESTIONS {
        all.push(api.get(&format!("/v1/waits/{question}")).await.expect(200).json());
    }
    all
}

/// The whole feed, up to the creation of this question.
async fn feed(api: &Api, last: &str, until: &str) -> Vec<Event> {
    let mut events = api.events("/v1/events", Some(last)).await;
    let mut all = Vec::new();
    loop {
        let event = events.next().await;
        let over = event.in_short() == until;
        all.push(event);
        if over {
            return all;
        }
    }
}

/// A daemon with messages in every state; those that are held are under way.
async fn fill(daemon: &Daemon) {
    let api = daemon.api();
    let mut text = String::new();
    for n in 0..MANY {
        let question = format!("many/{n} ü");
        let envelope = published(&format!("t{}", n % 500), &question, &format!("event-{n}"));
        writeln!(text, "{envelope}").unwrap();
    }
    let file = daemon.dir().join("many.ndjson");
    std::fs::write(&file, text).unwrap();
    let many = daemon.run(&["publish", file.to_str().unwrap()]).await;
    assert!(many.status.success(), "{}", err(&many));
    for (question, to) in [
        ("q-open", "held"),
        ("q-behind", "held"),
        ("q-answered", "host"),
        ("q-pull", "nobody"),
        ("q-dead", "dead"),
        ("q-cancelled", "held"),
    ] {
        api.post("/v1/waits", &asked("t", question, to)).await.expect(202);
    }
    let mut again = asked("t", "q-open", "held");
    again["event_id"] = "again".into();
    assert_eq!(api.post("/v1/waits", &again).await.expect(200).json()["duplicate"], true);
    let mut late = asked("t", "q-late", "host");
    late["expires_at"] = later(Duration::ZERO).into();
    late["run_id"] = "a run".into();
    api.post("/v1/waits", &late).await.expect(202);
    for question in ["q-answered", "q-pull"] {
        let exact = format!(
            r#"{{"thread_id":"t","question_id":"{question}","answer":{{"n":12345678901234567890.10}}}}"#
        );
        api.post_text("/v1/answers", exact).await.expect(200);
    }
    api.post("/v1/waits/q-cancelled/cancel", &json!({})).await.expect(200);
    keyed_post(api, &asked("t", "q-kept", "nobody")).await.expect(202);
    api.post("/v1/waits", &asked("t", "q-last", "nobody")).await.expect(202);
    let done = |page: &Value| {
        page["announcements"].as_array().unwrap().iter().all(|a| a["announcer"] == "held")
    };
    api.until("/v1/announcements?state=queued&limit=500", done).await;
    let sent = |page: &Value| {
        page["deliveries"].as_array().unwrap().iter().any(|d| d["question_id"] == "q-answered")
    };
    api.until("/v1/deliveries?state=delivered", sent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_moves_to_postgresql_though_the_copy_is_killed_and_nobody_notices() {
    let (gate, held) = (Gate::closed(), Receiver::start().await);
    let (dead, host) = (Receiver::start().await, Receiver::start().await);
    dead.answer_with(|_, _| Answer::status(400));
    let closed = gate.clone();
    held.answer_with(move |_, _| Answer::status(200).behind(&closed));
    let to = |name: &str| format!("match = {{ tags = {{ to = \"{name}\" }} }}\n{QUICK}");
    let setup = bare()
        .on_file()
        .config(&webhook(
            "held",
            &held.url("/"),
            &format!("ordering = \"thread\"\ntimeout = \"2m\"\n{}", to("held")),
        ))
        .config(&webhook("dead", &dead.url("/"), &to("dead")))
        .config(&http_route("host", &host.url("/"), &to("host")));
    let mut daemon = setup.clone().start().await;
    fill(&daemon).await;
    let before = told(daemon.api()).await;
    let mut events = feed(daemon.api(), "0", "q-last wait.created").await;
    let kept = keyed_post(daemon.api(), &asked("t", "q-kept", "nobody")).await.expect(202);
    let (file, target) = (setup.store_url(), database().await);
    refused(&copy(&setup, &file, &target, &[]).await, "in use by another process");
    daemon.kill9().await;

    // What a daemon would only leave behind after weeks.
    let path = setup.dir().join("answerback.db");
    {
        let conn = Connection::open(&path).unwrap();
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
        conn.execute_batch(
            "DELETE FROM events WHERE id = 2; \
             INSERT INTO forgotten VALUES (x'00112233445566778899aabbccddeeff', 3, 2, 17); \
             UPDATE outbox SET last_error = 'a' || char(0) || 'b' WHERE state = 3",
        )
        .unwrap();
    }
    events.retain(|event| event.id != "2");
    let as_left = || {
        ["answerback.db", "answerback.db-wal"]
            .map(|file| std::fs::read(setup.dir().join(file)).ok())
    };
    let left = as_left();

    // The second transaction of waits is held up, and there the copy is killed.
    let on_target = setup.clone().store(target.url());
    let config = on_target.write_config();
    let config = config.to_str().unwrap();
    let migrate = |args: &[&str]| on_target.command(args);
    let made = migrate(&["migrate", "--config", config]).output().await.unwrap();
    assert!(out(&made).ends_with(": schema 1 was made\n"), "{}{}", out(&made), err(&made));
    let (sql, lock) = (target.connect().await, target.connect().await);
    sql.batch_execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS \
           $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END $$; \
         CREATE TRIGGER hold BEFORE INSERT ON waits FOR EACH ROW WHEN (NEW.id > 2000) \
           EXECUTE FUNCTION hold()",
    )
    .await
    .unwrap();
    lock.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let args = ["migrate", "--from", &file, "--config", config];
    let mut copying = migrate(&args).spawn().unwrap();
    eventually("a copy that is under way", || async {
        let found = sql.query_typed("SELECT copied FROM copying", &[]).await.ok()?;
        found.first().filter(|row| row.get::<_, i64>(0) >= 2_000).map(|_| ())
    })
    .await;
    copying.kill().await.unwrap();
    let serve = migrate(&["serve", "--config", config]).output().await.unwrap();
    refused(&serve, "run the same `answerback migrate --from …` again");
    let other = setup.dir().join("other.db");
    let other = format!("sqlite:{}", other.display());
    let elsewhere = setup.replica();
    let mut make = elsewhere.command(&["migrate"]);
    let made = make.env("ANSWERBACK_STORE__URL", &other).output().await.unwrap();
    assert!(made.status.success(), "{}", err(&made));
    refused(&copy(&setup, &other, &target, &[]).await, "the unfinished copy of");
    lock.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    sql.batch_execute("DROP TRIGGER hold ON waits; DROP FUNCTION hold").await.unwrap();

    let copied = copy(&setup, &file, &target, &["--json"]).await;
    assert!(copied.status.success(), "{}", err(&copied));
    let copied: Value = serde_json::from_str(&out(&copied)).unwrap();
    assert_eq!(copied["rows"]["waits"], MANY + 9);
    assert_eq!(copied["rows"]["forgotten"], 1);
    assert_eq!(copied["rows"]["publishes"], 1);
    let earlier = copied["copied_earlier"].as_u64().unwrap();
    assert!((2_000..2_100).contains(&earlier), "{earlier}");
    assert!(as_left() == left, "the file is only read");
    refused(&copy(&setup, &file, &target, &[]).await, "is not empty");

    // The same daemon, on the other store.
    let daemon = on_target.start().await;
    let api = daemon.api();
    let after = told(api).await;
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        match before["state"] == "dead" {
            // What had a character that PostgreSQL does not hold.
            true => assert_eq!(after["last_error"], "a\u{fffd}b"),
            false => assert_eq!(before, after),
        }
    }
    assert_eq!(keyed_post(api, &asked("t", "q-kept", "nobody")).await.expect(202).body, kept.body);
    let clash = keyed_post(api, &asked("t", "another", "nobody")).await.expect(409);
    assert_eq!(clash.code(), "idempotency-key-body-mismatch");
    for event in ["event-q-open", "again"] {
        let mut again = asked("t", "q-open", "held");
        again["event_id"] = event.into();
        assert_eq!(api.post("/v1/waits", &again).await.expect(200).json()["duplicate"], true);
    }
    let found = sql.query_typed("SELECT generation, at FROM forgotten", &[]).await.unwrap();
    assert_eq!((found[0].get::<_, i32>(0), found[0].get::<_, i64>(1)), (3, 17));

    // Whoever followed goes on where they were.
    let at = events.len() / 2;
    let rest = feed(api, &events[at].id, "q-last wait.created").await;
    assert_eq!(rest, events[at + 1..]);
    assert_eq!(feed(api, "0", "q-last wait.created").await, events);
    let end = &events.last().unwrap().id;
    api.post("/v1/waits", &asked("fresh", "q-new", "held")).await.expect(202);
    let new = feed(api, end, "q-new wait.created").await;
    let in_short: Vec<String> = new.iter().map(Event::in_short).collect();
    assert_eq!(in_short, ["q-new wait.created"]);
    assert!(new[0].id.parse::<u64>().unwrap() > end.parse().unwrap());

    // What was under way goes out, in order, and answers find their hosts.
    gate.open();
    api.until("/v1/announcements?state=queued", |page| page["announcements"] == json!([])).await;
    let sent: Vec<Value> = held.all().iter().map(|r| r.json()["question_id"].clone()).collect();
    let of = |question: &str| sent.iter().rposition(|q| q == question).unwrap();
    assert!(of("q-open") < of("q-behind") && of("q-new") > 0, "{sent:?}");
    api.post("/v1/answers", &answer("t", "q-open", json!(true))).await.expect(200);
    let pulled = api.get("/v1/waits/q-pull/answer").await.expect(200);
    assert!(pulled.text().contains("12345678901234567890.10"), "{}", pulled.text());
    let path = format!("/v1/waits/{}", escaped("many/2299 ü"));
    assert_eq!(api.get(&path).await.expect(200).json()["state"], "open");
    let newest = all_of(api, "/v1/waits?thread_id=fresh").await;
    assert_eq!(newest.len(), 1);
}

#[tokio::test]
async fn a_store_is_copied_into_an_empty_database_only() {
    let target = database().await;
    let setup = bare().on_file();
    let file = setup.store_url();
    refused(&copy(&setup, &file, &target, &[]).await, "there is no store at");
    let mut old = setup.clone().start().await;
    old.api().post("/v1/waits", &published("t", "q", "e")).await.expect(202);
    assert!(old.terminate().await.success());
    let mut daemon = setup.replica().store(target.url()).start().await;
    daemon.api().post("/v1/waits", &published("t", "theirs", "e")).await.expect(202);
    assert!(daemon.terminate().await.success());
    refused(&copy(&setup, &file, &target, &[]).await, "its table waits has rows");

    // A wrong command line.
    for (args, what) in [
        (["--from", "postgres://h/db", "--to-env", "TARGET"], "is no file"),
        (["--from", &file, "--to-env", "NOWHERE"], "no environment variable NOWHERE"),
        (["--from", &file, "--to", "postgres://u:s3cret@h/db"], "--to-env"),
        (["--from", &file, "--to", "sqlite:x.db"], "--to is no PostgreSQL"),
    ] {
        let command = setup.command(&[&["migrate"], &args[..]].concat()).output().await.unwrap();
        assert_eq!(command.status.code(), Some(2), "{}", err(&command));
        assert!(
            err(&command).contains(what) && !err(&command).contains("s3cret"),
            "{}",
            err(&command)
        );
    }
    // The configuration's own store is no place for a copy either.
    let config = setup.write_config();
    let args = ["migrate", "--from", &file, "--config", config.to_str().unwrap()];
    refused(&setup.command(&args).output().await.unwrap(), "a copy goes into PostgreSQL");

    let empty = database().await;
    let copied = copy(&setup, &file, &empty, &[]).await;
    assert!(copied.status.success(), "{}", err(&copied));
    assert!(out(&copied).contains("waits         1\n"), "{}", out(&copied));
    assert_eq!(err(&copied), "", "no progress bar where there is no terminal");
}

#[tokio::test]
async fn a_schema_is_brought_up_to_date_by_itself() {
    let target = database().await;
    let setup = bare().on_file();
    let migrate = async |setup: &Setup, more: &[&str]| {
        let config = setup.write_config();
        let args = [&["migrate", "--config", config.to_str().unwrap()], more].concat();
        let done = setup.command(&args).output().await.unwrap();
        assert!(done.status.success(), "{}", err(&done));
        out(&done)
    };
    assert!(migrate(&setup, &[]).await.ends_with(": schema 2 was made\n"));
    assert!(migrate(&setup, &[]).await.ends_with(": schema 2 is up to date\n"));
    let on_target = setup.replica().store(target.url());
    let first: Value = serde_json::from_str(&migrate(&on_target, &["--json"]).await).unwrap();
    assert_eq!((&first["before"], &first["now"]), (&Value::Null, &json!(1)));
    let second = migrate(&on_target, &[]).await;
    assert!(second.ends_with(": schema 1 is up to date\n") && !second.contains('@'), "{second}");
}
