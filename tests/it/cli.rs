//! The command line, as people and scripts use it.

use answerback_testkit::daemon::{Daemon, Setup};
use std::fmt::Write as _;
use std::process::{Output, Stdio};
use tokio::io::AsyncReadExt as _;

const BINARY: &str = env!("CARGO_BIN_EXE_answerback");

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn envelope(thread: &str, question: &str, amount: &str) -> String {
    format!(
        r#"{{"type":"wait.created","thread_id":"{thread}","question_id":"{question}","question":{{"amount":{amount}}},"tags":{{"group":"finance"}}}}"#
    )
}

async fn publish(daemon: &Daemon, text: &str) -> Output {
    let file = daemon.dir().join("questions.ndjson");
    std::fs::write(&file, text).unwrap();
    daemon.run(&["publish", file.to_str().unwrap()]).await
}

#[tokio::test]
async fn a_file_of_questions_is_published_once_however_often_it_is_sent() {
    let daemon = Setup::new(BINARY).start().await;
    let mut text = String::new();
    for n in 0..150 {
        writeln!(text, "{}", envelope(&format!("t{}", n % 40), &format!("q{n}"), "1")).unwrap();
    }
    let first = publish(&daemon, &text).await;
    assert_eq!(code(&first), Some(0), "{}", err(&first));
    assert_eq!(out(&first).lines().count(), 150);
    assert!(err(&first).contains("150 accepted, 0 duplicates, 0 failed"), "{}", err(&first));
    let again = publish(&daemon, &text).await;
    assert!(err(&again).contains("0 accepted, 150 duplicates, 0 failed"), "{}", err(&again));

    let broken = format!("{}\nnonsense\n{}\n", envelope("t", "a", "1"), envelope("t", "b", "NaN"));
    let broken = publish(&daemon, &broken).await;
    assert_eq!(code(&broken), Some(1));
    assert!(out(&broken).starts_with("accepted   a  thread t, generation 1\n"));
    assert!(err(&broken).contains("line 2: error: ") && err(&broken).contains("line 3: error: "));
    assert!(err(&broken).contains("(bad-input, request "), "{}", err(&broken));

    let listed = daemon.run(&["waits", "list", "--all", "--json", "--tag", "group=finance"]).await;
    assert_eq!(out(&listed).lines().count(), 151);
    let page = daemon.run(&["waits", "list", "--limit", "3"]).await;
    assert_eq!(out(&page).lines().count(), 4, "a header and three waits: {}", out(&page));
    assert!(err(&page).contains("there are more"));
}

#[tokio::test]
async fn a_question_is_looked_at_answered_and_withdrawn() {
    let daemon = Setup::new(BINARY).start().await;
    let text = envelope("order-1", "a/b #1", "123456789012345678901.10");
    assert_eq!(code(&publish(&daemon, &text).await), Some(0));

    let shown = daemon.run(&["waits", "get", "a/b #1"]).await;
    assert!(out(&shown).contains("\"amount\": 123456789012345678901.10"), "{}", out(&shown));
    let raw = daemon.run(&["waits", "get", "a/b #1", "--json"]).await;
    assert!(out(&raw).contains(r#""question":{"amount":123456789012345678901.10}"#));

    let answer = daemon.dir().join("answer.json");
    std::fs::write(&answer, "{\"action\": \"approve\", \"n\": 1.10}\n").unwrap();
    let answer = format!("@{}", answer.display());
    let given =
        daemon.run(&["waits", "answer", "a/b #1", "--answer", &answer, "--by", "Zoë"]).await;
    assert_eq!((code(&given), out(&given).as_str()), (Some(0), "accepted: a/b #1 is answered\n"));
    let same = ["waits", "answer", "a/b #1", "--answer", "{\"n\":1.1,\"action\":\"approve\"}"];
    assert_eq!(code(&daemon.run(&same).await), Some(0), "the same answer again");
    let other = daemon.run(&["waits", "answer", "a/b #1", "--answer", "null"]).await;
    assert_eq!(code(&other), Some(1));
    assert!(err(&other).starts_with("error: ") && err(&other).contains("(wait-closed, request "));

    // The question is asked anew under its id: what is meant is the newest, not the first.
    assert_eq!(code(&publish(&daemon, &envelope("order-1", "a/b #1", "2")).await), Some(0));
    let second = daemon.run(&["waits", "answer", "a/b #1", "--answer", "true", "--json"]).await;
    assert_eq!(out(&second), "{\"status\":\"accepted\"}\n", "{}", err(&second));

    publish(&daemon, &envelope("order-2", "..", "1")).await;
    let cancelled = daemon.run(&["waits", "cancel", ".."]).await;
    assert_eq!((code(&cancelled), out(&cancelled).as_str()), (Some(0), "cancelled: ..\n"));
    let states = daemon.run(&["waits", "list", "--state", "cancelled"]).await;
    assert_eq!(out(&states).lines().count(), 2, "{}", out(&states));

    let deliveries = daemon.run(&["deliveries", "list", "--route", "pull"]).await;
    assert_eq!(out(&deliveries).lines().count(), 3, "{}", out(&deliveries));
    let announced = daemon.run(&["announcements", "list", "--json"]).await;
    assert!(out(&announced).lines().all(|line| line.starts_with('{')), "{}", out(&announced));
}

#[tokio::test]
async fn errors_end_with_one_say_what_to_do_and_show_no_key() {
    const KEYS: &str = r#"[auth]
keys = [{ name = "reader", key_env = "READER", scopes = ["read"] }]"#;
    let daemon =
        Setup::new(BINARY).env("READER", "reader-key-0123456789").config(KEYS).start().await;
    let none = daemon.run(&["waits", "list"]).await;
    assert_eq!(code(&none), Some(1));
    assert!(err(&none).contains("(unauthenticated, request "), "{}", err(&none));
    assert!(err(&none).contains("give a key by ANSWERBACK_API_KEY or --key"));
    let key = ["waits", "list", "--key", "reader-key-0123456789"];
    assert_eq!(code(&daemon.run(&key).await), Some(0));
    let scope = ["waits", "cancel", "q", "--key", "reader-key-0123456789"];
    let scope = daemon.run(&scope).await;
    assert!(err(&scope).contains("use a key with the scope \"publish\""), "{}", err(&scope));

    let away = daemon.run(&["waits", "list", "--url", "http://127.0.0.1:1"]).await;
    assert_eq!(code(&away), Some(1));
    assert!(err(&away).contains("is the daemon running?"), "{}", err(&away));
    let usage = daemon.run(&["waits", "answer", "q", "--answer", "yes"]).await;
    assert_eq!(code(&usage), Some(2));
    assert!(err(&usage).contains("a text needs quotation marks of its own"));
    assert_eq!(code(&daemon.run(&["waits", "nonsense"]).await), Some(2));
    for output in [none, scope, away, usage] {
        assert!(!err(&output).contains("reader-key"), "{}", err(&output));
    }
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_error() {
    let daemon = Setup::new(BINARY).start().await;
    let mut text = String::new();
    for n in 0..400 {
        let question = format!("q{n}-{}", "x".repeat(400));
        writeln!(text, "{}", envelope(&format!("t{n}"), &question, "1")).unwrap();
    }
    publish(&daemon, &text).await;
    let mut child = daemon
        .setup()
        .command(&["waits", "list", "--all", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0_u8; 10];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).await.unwrap();
    drop(stdout);
    let ended = child.wait_with_output().await.unwrap();
    assert_eq!((code(&ended), err(&ended).as_str()), (Some(0), ""));
}

#[tokio::test]
async fn check_names_problems_with_their_lines_and_tries_what_is_there() {
    let daemon = Setup::new(BINARY).on_file().start().await;
    let config = daemon.dir().join("answerback.toml");
    let connected = daemon.run(&["check", "--connect"]).await;
    assert_eq!(code(&connected), Some(0), "{}{}", out(&connected), err(&connected));
    assert!(out(&connected).contains("in use by a running daemon"), "{}", out(&connected));

    let text = std::fs::read_to_string(&config).unwrap();
    let wrong = daemon.dir().join("wrong.toml");
    std::fs::write(&wrong, format!("{text}\n[announcers.a]\ntype = \"webhook\"\nulr = \"x\"\n"))
        .unwrap();
    let wrong = daemon.run(&["check", "--config", wrong.to_str().unwrap()]).await;
    assert_eq!(code(&wrong), Some(1));
    let line = text.lines().count() + 4;
    let told = format!(
        "wrong.toml:{line}: announcers.a.ulr: is no key of this table; did you mean \"url\"?"
    );
    assert!(err(&wrong).contains(&told), "{}", err(&wrong));
    assert!(err(&wrong).ends_with("error: 2 problems in the configuration\n"));

    let away = daemon.dir().join("away.toml");
    let webhook = "[announcers.a]\ntype = \"webhook\"\nurl = \"http://127.0.0.1:1/\"\nallow_private = [\"127.0.0.1\"]\n";
    std::fs::write(&away, format!("{text}\n{webhook}")).unwrap();
    let away = daemon.run(&["check", "--connect", "--config", away.to_str().unwrap()]).await;
    assert_eq!(code(&away), Some(1), "{}", out(&away));
    assert!(
        out(&away).contains("failed: ") && err(&away).contains("1 of 3 failed"),
        "{}",
        err(&away)
    );

    let serve = daemon.run(&["serve", "--config", "missing.toml"]).await;
    assert_eq!(code(&serve), Some(1));
    assert!(err(&serve).contains("missing.toml: cannot be read"), "{}", err(&serve));
}
