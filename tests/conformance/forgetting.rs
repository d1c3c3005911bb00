//! Retention, and what outlives it.

use crate::kit::{
    Kit, announcer, announcing, answer, ask, at, days, dead, delivered, generation, lease, outbox,
    routed, wait, waits,
};
use answerback::contract::Time;
use answerback::core::{AnswerOutcome, PublishOutcome};
use answerback::store::{KeptReply, Retention, Store};

const RETENTION: Retention = Retention {
    closed: days_const(30),
    dead: days_const(90),
    tombstones: days_const(90),
    replies: days_const(1),
};

const fn days_const(n: u64) -> std::time::Duration {
    std::time::Duration::from_secs(n * 86_400)
}

fn day(n: u64) -> Time {
    at(0).after(days(n))
}

async fn purge(store: &dyn Store, now: Time) -> u64 {
    store.purge(RETENTION, 100, now).await.unwrap()
}

async fn left(store: &dyn Store) -> String {
    let waits = waits(store).await;
    waits.into_iter().map(|(q, ..)| q).collect::<Vec<_>>().join(" ")
}

pub(crate) async fn what_is_old_and_over_is_forgotten_the_rest_stays(kit: &Kit) {
    let store = kit.fresh(routed(&["a"], "r")).await;
    for question in ["open", "dead", "sent", "busy", "young"] {
        ask("t", question).send(&*store, day(0)).await;
    }
    for message in lease(&*store, &announcer("a"), 9, day(0)).await {
        let end = match message.wait.question_id.as_str() {
            "dead" => dead(&message),
            _ => delivered(&message),
        };
        store.settle(vec![end], day(0)).await.unwrap();
    }
    // Delivered one by one: they are of one thread.
    for question in ["dead", "sent", "busy"] {
        store.answer(answer("t", question, "1"), day(0)).await.unwrap();
    }
    for _ in 0..2 {
        let out = lease(&*store, &crate::kit::route("r"), 1, day(0)).await;
        store.settle(vec![delivered(&out[0])], day(0)).await.unwrap();
    }
    store.answer(answer("t", "young", "1"), day(5)).await.unwrap();
    assert_eq!(purge(&*store, day(29)).await, 0);
    assert_eq!(purge(&*store, day(30)).await, 1);
    assert_eq!(left(&*store).await, "open dead busy young");
    assert!(outbox(&*store).await.iter().all(|row| row.question_id.as_str() != "sent"));
    assert_eq!(purge(&*store, day(89)).await, 0, "its dead message is kept, the other is queued");
    assert_eq!(purge(&*store, day(90)).await, 1);
    assert_eq!(left(&*store).await, "open busy young");
    // New numbers are never old ones.
    let before = wait(&*store, "t", "young").await.id;
    ask("t", "new").send(&*store, day(91)).await;
    assert!(wait(&*store, "t", "new").await.id > before);
}

pub(crate) async fn keys_and_publishes_outlive_their_wait(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    let first = ask("t", "q").event("e1").send(&*store, day(0)).await;
    ask("t", "q").event("e2").send(&*store, day(0)).await;
    store.cancel(wait(&*store, "t", "q").await.id, day(0)).await.unwrap();
    assert_eq!(purge(&*store, day(31)).await, 1);
    assert_eq!(left(&*store).await, "");
    for event in ["e1", "e2"] {
        let again = ask("t", "q").event(event).send(&*store, day(32)).await;
        assert_eq!(again.outcome, PublishOutcome::Duplicate(generation(1)));
        assert_eq!(again.rest, first.rest);
    }
    assert_eq!(left(&*store).await, "", "a redelivery has no effect");
    let other = ask("u", "q").send(&*store, day(32)).await;
    assert_eq!(other.outcome, PublishOutcome::New(generation(1)));
    assert_eq!(other.rest.as_str(), "q:2");
    assert_eq!(ask("t", "q:2").send(&*store, day(32)).await.rest.as_str(), "q:2:2");
}

pub(crate) async fn a_forgotten_question_asked_again_is_the_next_generation(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    for question in ["1", "2"] {
        ask("t", "q").question(question).send(&*store, day(0)).await;
    }
    store.cancel(wait(&*store, "t", "q").await.id, day(0)).await.unwrap();
    assert_eq!(purge(&*store, day(31)).await, 2);
    let again = ask("t", "q").question("1").send(&*store, day(32)).await;
    assert_eq!(again.outcome, PublishOutcome::New(generation(3)));
    assert_eq!(again.rest.as_str(), "q:3");
    // A yes to what was forgotten is no yes to what is asked now.
    let late = store.answer(answer("t", "q", "true"), day(32)).await.unwrap();
    assert_eq!(late.outcome, AnswerOutcome::NotFound);
}

pub(crate) async fn after_ninety_days_all_is_as_new(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    ask("t", "q").event("e1").send(&*store, day(0)).await;
    store.cancel(wait(&*store, "t", "q").await.id, day(0)).await.unwrap();
    purge(&*store, day(31)).await;
    purge(&*store, day(31 + 91)).await;
    let again = ask("t", "q").event("e1").send(&*store, day(123)).await;
    assert_eq!(again.outcome, PublishOutcome::New(generation(1)));
    assert_eq!(again.rest.as_str(), "q");
}

pub(crate) async fn purging_goes_in_small_steps(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    for n in 0..25 {
        ask("t", &format!("q{n}")).send(&*store, day(0)).await;
        store.answer(answer("t", &format!("q{n}"), "1"), day(0)).await.unwrap();
        let reply = KeptReply { body_hash: [0; 32], status: 200, body: Vec::new() };
        store.keep_reply(format!("k{n}"), reply, day(0)).await.unwrap();
    }
    // Pull deliveries that nobody came for do not keep their wait.
    for expected in [10, 10, 5, 0] {
        assert_eq!(store.purge(RETENTION, 10, day(31)).await.unwrap(), expected);
    }
    assert_eq!(left(&*store).await, "");
    assert!(store.depths().await.unwrap().is_empty());
    assert!(store.destinations().await.unwrap().is_empty());
}
