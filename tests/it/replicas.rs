//! Daemons that share a PostgreSQL database, and what happens when that is out of reach.

use crate::bed::{
    QUICK, all_of, answer, bare, envelope, settled, settled_after_a_kill, wait_path, webhook,
};
use answerback_testkit::daemon::Setup;
use answerback_testkit::postgres::{self, Server, Stop};
use answerback_testkit::proxy::{Network, Proxy};
use answerback_testkit::{Daemon, PATIENCE, Receiver, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::timeout;
use url::Url;

async fn two(setup: Setup) -> [Daemon; 2] {
    let other = setup.replica();
    [setup.start().await, other.start().await]
}

/// Asks at one, answers at the other, and waits at the one for the answer; then the other way round.
async fn are_as_one(daemons: &[Daemon; 2], hook: &Receiver) {
    for (n, (here, there)) in [(0, 1), (1, 0)].into_iter().enumerate() {
        let (here, there) = (daemons[here].api(), daemons[there].api());
        let (thread, question) = (format!("t{n}"), format!("q{n}"));
        let wait = envelope(&thread, &question);
        here.post("/v1/waits", &wait).await.expect(202);
        assert_eq!(hook.next().await.json()["question_id"], question);
        let poll = {
            let (here, path) = (here.clone(), format!("/v1/waits/{question}/answer?wait=30s"));
            tokio::spawn(async move { here.get(&path).await })
        };
        there.post("/v1/waits", &wait).await.expect(200);
        there.post("/v1/answers", &answer(&thread, &question, json!(n))).await.expect(200);
        assert_eq!(poll.await.unwrap().expect(200).json()["answer"], n);
        let late = here.post("/v1/answers", &answer(&thread, &question, json!("no"))).await;
        assert_eq!((late.status, late.code().as_str()), (409, "wait-closed"));
    }
    for daemon in daemons {
        settled(daemon).await;
        assert_eq!(all_of(daemon.api(), "/v1/waits").await.len(), 2);
    }
    assert_eq!(hook.all().len(), 2, "each is announced by one of them");
}

#[tokio::test]
async fn two_daemons_behind_a_proxy_that_pools_transactions_are_as_one() {
    let hook = Receiver::start().await;
    let database = postgres::database().await;
    let setup =
        bare().store(&database.pgbouncer_url()).config(&webhook("hook", &hook.url("/"), ""));
    are_as_one(&two(setup).await, &hook).await;
}

#[tokio::test]
async fn two_daemons_that_also_listen_past_the_proxy_are_as_one() {
    let hook = Receiver::start().await;
    let database = postgres::database().await;
    let setup = bare()
        .store(&database.pgbouncer_url())
        .listen_url(database.url())
        .config(&webhook("hook", &hook.url("/"), ""));
    are_as_one(&two(setup).await, &hook).await;
}

/// The ids of the questions that a daemon lists.
async fn listed(daemon: &Daemon) -> BTreeSet<String> {
    let waits = all_of(daemon.api(), "/v1/waits").await;
    waits.iter().map(|wait| wait["question_id"].as_str().unwrap().to_owned()).collect()
}

fn announced(hook: &Receiver) -> BTreeSet<String> {
    hook.all().iter().map(|r| r.json()["question_id"].as_str().unwrap().to_owned()).collect()
}

/// Of an attempt. Not long: a lease whose word was lost on the way holds for this and a minute.
const TIMEOUT: Duration = Duration::from_secs(1);

fn impatient(hook: &Receiver) -> String {
    webhook("hook", &hook.url("/"), &format!("{QUICK}\ntimeout = \"{}s\"", TIMEOUT.as_secs()))
}

/// Asks until it is acknowledged.
async fn insist(daemon: &Daemon, wait: &Value) {
    eventually("the daemon takes waits again", || async {
        (daemon.api().post("/v1/waits", wait).await.status < 300).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_restarted_or_dies_loses_nothing_that_was_acknowledged() {
    let hook = Receiver::start().await;
    let mut server = Server::start().await;
    let database = server.database().await;
    let setup = bare().store(database.url()).config(&impatient(&hook));
    let daemons = two(setup).await;
    let mut acknowledged = BTreeSet::new();
    for (n, how) in [Some(Stop::Fast), Some(Stop::Immediate), None].into_iter().enumerate() {
        for (d, daemon) in daemons.iter().enumerate() {
            let question = format!("q{n}-{d}");
            insist(daemon, &envelope(&format!("t{d}"), &question)).await;
            acknowledged.insert(question);
        }
        match how {
            Some(how) => server.stop(how).await,
            None => server.kill().await,
        }
        let refused = daemons[0].api().post("/v1/waits", &envelope("t", "refused")).await;
        assert_eq!(refused.expect(503).code(), "store-unavailable", "round {n}");
        eventually("the other is not ready either", || async {
            (daemons[1].api().get("/readyz").await.status == 503).then_some(())
        })
        .await;
        server.start_again().await;
    }
    for daemon in &daemons {
        insist(daemon, &envelope("t", "last")).await;
        acknowledged.insert("last".to_owned());
        settled_after_a_kill(daemon, TIMEOUT).await;
        assert_eq!(listed(daemon).await, acknowledged, "only what was acknowledged");
    }
    assert_eq!(announced(&hook), acknowledged);
}

#[tokio::test]
async fn a_daemon_that_cannot_reach_the_server_says_so_and_the_others_go_on() {
    let hook = Receiver::start().await;
    let database = postgres::database().await;
    let network = Proxy::start(postgres::shared_addr()).await;
    let near = bare().store(database.url()).config(&impatient(&hook));
    let far = near.replica().store(&network.lead(database.url()));
    let (near, far) = (near.start().await, far.start().await);
    far.api().post("/v1/waits", &envelope("t0", "q0")).await.expect(202);

    network.set(Network::Refusing);
    network.cut();
    let refused = far.api().post("/v1/waits", &envelope("t1", "q1")).await.expect(503);
    assert_eq!(refused.code(), "store-unavailable");
    assert!(!refused.header("retry-after").is_empty());
    near.api().post("/v1/waits", &envelope("t2", "q2")).await.expect(202);
    near.api().post("/v1/answers", &answer("t0", "q0", json!(1))).await.expect(200);

    network.set(Network::Fine);
    insist(&far, &envelope("t1", "q1")).await;
    let wait = far.api().get(&wait_path("t0", "q0")).await.expect(200).json();
    assert_eq!(wait["state"], "completed");
    network.cut();
    insist(&far, &envelope("t3", "q3")).await;
    let all = ["q0", "q1", "q2", "q3"].map(ToOwned::to_owned);
    for daemon in [&near, &far] {
        settled_after_a_kill(daemon, TIMEOUT).await;
        assert_eq!(listed(daemon).await, BTreeSet::from(all.clone()));
    }
    assert_eq!(announced(&hook), BTreeSet::from(all));
}

#[tokio::test]
async fn check_reaches_the_database_and_names_it_without_its_password() {
    let database = postgres::database().await;
    let setup = bare().store(database.url());
    let config = setup.write_config();
    let check = |setup: Setup| {
        let config = config.to_str().unwrap().to_owned();
        async move {
            let run = setup.command(&["check", "--connect", "--config", &config]).output();
            let output = timeout(PATIENCE, run).await.unwrap().unwrap();
            let said = [output.stdout, output.stderr].concat();
            (output.status.code(), String::from_utf8(said).unwrap())
        }
    };
    let url = Url::parse(database.url()).unwrap();
    let (code, said) = check(setup.clone()).await;
    assert_eq!(code, Some(0), "{said}");
    let shown = format!("postgres://127.0.0.1:{}{}", url.port().unwrap(), url.path());
    assert!(said.contains(&shown) && !said.contains(url.password().unwrap()), "{said}");

    let mut wrong = url.clone();
    wrong.set_password(Some("hunter2")).unwrap();
    let (code, said) = check(setup.store(wrong.as_str())).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("does not let `postgres` in") && !said.contains("hunter2"), "{said}");
}
