//! Questions come in.

use crate::kit::{
    Kit, announcer, announcing, answer, ask, at, generation, outbox, routed, seen, traffic, wait,
    waits,
};
use answerback::contract::{Event, WaitState};
use answerback::core::{AnswerOutcome, OutboxState, PublishOutcome};
use answerback::store::Published;
use std::collections::HashSet;

fn is_new(published: &Published, of: u32) {
    assert_eq!(published.outcome, PublishOutcome::New(generation(of)));
}

fn is_duplicate(published: &Published, of: u32) {
    assert_eq!(published.outcome, PublishOutcome::Duplicate(generation(of)));
    assert!(published.queued.is_empty(), "{:?}", published.queued);
}

pub(crate) async fn a_new_question_is_queued_for_every_announcer_that_wants_it(kit: &Kit) {
    let store = kit.fresh(announcing(&["a", "b"])).await;
    let deadline = at(3_600);
    let published = ask("t", "q").expires(deadline).event("e1").send(&*store, at(0)).await;
    is_new(&published, 1);
    assert_eq!(published.rest.as_str(), "q");
    assert_eq!(published.expires_at, Some(deadline));
    assert_eq!(published.queued, [announcer("a"), announcer("b")]);
    assert!(!published.unmatched);
    let queued = |label| seen(label, "created", OutboxState::Queued);
    assert_eq!(traffic(&*store).await, [queued("a"), queued("b")]);
    for row in outbox(&*store).await {
        assert_eq!((row.event, row.event_id, row.attempts), (Event::Created, None, 0));
        assert_eq!((row.queued_at, row.next_attempt_at), (at(0), Some(at(0))));
        assert_eq!((row.last_error, row.reason, row.finished_at), (None, None, None));
    }
    let wait = wait(&*store, "t", "q").await;
    assert_eq!(wait.state, WaitState::Open);
    assert_eq!((wait.created_at, wait.expires_at), (at(0), Some(deadline)));
    assert_eq!((wait.event_id.as_str(), &*wait.run_id), ("e1", "t"));
}

pub(crate) async fn a_batch_sees_its_own_effects_in_order(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    let batch = vec![
        ask("t", "q").event("e1").publish(),
        ask("t", "q").event("e1").publish(),
        ask("t", "q").event("e2").publish(),
        ask("t", "q").question("2").publish(),
        ask("t", "q").event("e1").publish(),
        ask("u", "q").publish(),
    ];
    let published = store.publish(batch, at(0)).await.unwrap();
    assert_eq!(published.len(), 6);
    is_new(&published[0], 1);
    is_duplicate(&published[1], 1);
    is_duplicate(&published[2], 1);
    is_new(&published[3], 2);
    is_duplicate(&published[4], 2);
    is_new(&published[5], 1);
    let rests: Vec<&str> = published.iter().map(|p| p.rest.as_str()).collect();
    assert_eq!(rests, ["q", "q", "q", "q:2", "q:2", "q:3"]);
}

pub(crate) async fn a_redelivery_has_no_effect_ever_after(kit: &Kit) {
    let store = kit.fresh(routed(&["a"], "r")).await;
    let first = ask("t", "q").question("1").event("e1");
    let again = ask("t", "q").question("1").event("e2");
    first.send(&*store, at(0)).await;
    again.send(&*store, at(1)).await;
    is_duplicate(&first.send(&*store, at(2)).await, 1);
    let accepted = store.answer(answer("t", "q", "true"), at(3)).await.unwrap();
    assert_eq!(accepted.outcome, AnswerOutcome::Accepted);
    // Answered: a fresh publish would have the answer sent again, a redelivery must not.
    is_duplicate(&first.send(&*store, at(4)).await, 1);
    is_duplicate(&again.send(&*store, at(4)).await, 1);
    assert_eq!(wait(&*store, "t", "q").await.resends, 0);
    // Superseded: both ids belong to the question before.
    is_new(&ask("t", "q").question("2").event("e3").send(&*store, at(5)).await, 2);
    is_duplicate(&first.send(&*store, at(6)).await, 2);
    is_duplicate(&again.send(&*store, at(6)).await, 2);
    // The same id under another question is another publish.
    is_new(&ask("t", "q2").event("e1").send(&*store, at(7)).await, 1);
    is_new(&ask("t2", "q").event("e1").send(&*store, at(7)).await, 1);
}

pub(crate) async fn the_same_question_again_is_a_duplicate_that_moves_the_reply(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    let first = ask("t", "q").question("{\"a\":1,\"b\":2.0}").expires(at(100));
    first.send(&*store, at(0)).await;
    let moved = ask("t", "q")
        .question("{\"b\":2,\"a\":1}")
        .expires(at(900))
        .with("reply_with", "{\"thread_id\":\"t\",\"question_id\":\"q\",\"x\":1}");
    is_duplicate(&moved.send(&*store, at(1)).await, 1);
    let wait = wait(&*store, "t", "q").await;
    assert_eq!(wait.expires_at, Some(at(100)), "the first deadline holds");
    assert_eq!(wait.envelope, *first.publish().envelope.text());
    assert_eq!(wait.taken_over.as_ref(), Some(moved.publish().envelope.text()));
    assert_eq!(traffic(&*store).await.len(), 1);
}

pub(crate) async fn another_question_supersedes_the_open_one(kit: &Kit) {
    let store = kit.fresh(announcing(&["a*"])).await;
    ask("t", "q").question("1").send(&*store, at(0)).await;
    let second = ask("t", "q").question("2").send(&*store, at(1)).await;
    is_new(&second, 2);
    assert_eq!(second.rest.as_str(), "q:2");
    let open = WaitState::Open;
    assert_eq!(
        waits(&*store).await,
        [("q".into(), 1, WaitState::Cancelled), ("q".into(), 2, open)]
    );
    let queued = OutboxState::Queued;
    assert_eq!(
        traffic(&*store).await,
        [
            seen("a", "created", OutboxState::Withdrawn),
            seen("a", "cancelled", queued),
            seen("a", "created", queued)
        ]
    );
}

pub(crate) async fn an_answered_question_is_answered_again(kit: &Kit) {
    let store = kit.fresh(routed(&[], "r")).await;
    ask("t", "q").send(&*store, at(0)).await;
    store.answer(answer("t", "q", "1"), at(1)).await.unwrap();
    let r = crate::kit::route("r");
    for n in 1..=2 {
        let out = crate::kit::lease(&*store, &r, 9, at(n)).await;
        store.settle(vec![crate::kit::delivered(&out[0])], at(n)).await.unwrap();
        let again = ask("t", "q").send(&*store, at(1 + n)).await;
        assert_eq!(again.outcome, PublishOutcome::Duplicate(generation(1)));
        assert_eq!(again.queued, std::slice::from_ref(&r));
        assert_eq!(i64::from(wait(&*store, "t", "q").await.resends), n);
    }
    assert_eq!(traffic(&*store).await.len(), 3);
}

pub(crate) async fn an_answer_that_still_waits_is_not_queued_again(kit: &Kit) {
    let mut rules = routed(&[], "r");
    rules.routes[0].matcher.thread_prefixes = vec!["t".to_owned()];
    let store = kit.fresh(rules).await;
    for thread in ["t", "pulled"] {
        ask(thread, "q").send(&*store, at(0)).await;
        store.answer(answer(thread, "q", "1"), at(1)).await.unwrap();
        for _ in 0..100 {
            is_duplicate(&ask(thread, "q").send(&*store, at(2)).await, 1);
        }
        assert_eq!(wait(&*store, thread, "q").await.resends, 0);
    }
    assert_eq!(traffic(&*store).await.len(), 2);
    // One that is out may be on its way to where the asker is no longer: one more, and no further.
    let out = crate::kit::lease(&*store, &crate::kit::route("r"), 9, at(2)).await;
    for _ in 0..100 {
        ask("t", "q").send(&*store, at(2)).await;
    }
    assert_eq!(traffic(&*store).await.len(), 3);
    store.settle(vec![crate::kit::retry_at(&out[0], at(5))], at(3)).await.unwrap();
    ask("t", "q").send(&*store, at(4)).await;
    assert_eq!(traffic(&*store).await.len(), 3);
    let pulled = wait(&*store, "pulled", "q").await.id;
    assert!(store.pulled(pulled, at(4)).await.unwrap());
    ask("pulled", "q").send(&*store, at(5)).await;
    assert_eq!(traffic(&*store).await.len(), 4);
}

pub(crate) async fn dedupe_keys_belong_to_one_wait(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    let mut rests = HashSet::new();
    for n in 0..30 {
        let published = ask(&format!("t{n}"), "q").send(&*store, at(0)).await;
        let expected = if n == 0 { "q".to_owned() } else { format!("q:{}", n + 1) };
        assert_eq!(published.rest.as_str(), expected);
        assert!(rests.insert(published.rest));
    }
}

pub(crate) async fn a_dedupe_key_that_another_question_spells_is_taken(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    let rest = async |thread: &str, question: &str| {
        ask(thread, question).send(&*store, at(0)).await.rest.as_str().to_owned()
    };
    assert_eq!(rest("t1", "q").await, "q");
    assert_eq!(rest("t1", "q:2").await, "q:2");
    assert_eq!(rest("t2", "q").await, "q:3");
    assert_eq!(rest("t3", "q").await, "q:4");
    assert_eq!(rest("t1", "q:4").await, "q:4:2");
    assert_eq!(rest("t2", "q:2").await, "q:2:2");
    assert_eq!(rest("t1", "q:2:2").await, "q:2:2:2");
    assert_eq!(rest("t1", "q:02").await, "q:02");
}

pub(crate) async fn a_question_id_of_very_many_threads_costs_no_more(kit: &Kit) {
    const MANY: usize = 3_000;
    let store = kit.fresh(announcing(&[])).await;
    let batch = (0..MANY).map(|n| ask(&format!("t{n}"), "approve").publish()).collect();
    let published = store.publish(batch, at(0)).await.unwrap();
    let rests: HashSet<&str> = published.iter().map(|p| p.rest.as_str()).collect();
    assert_eq!(rests.len(), MANY);
    assert!(rests.contains("approve") && rests.contains("approve:3000"));
}

pub(crate) async fn tenants_share_nothing(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    is_new(&ask("t", "q").event("e").send(&*store, at(0)).await, 1);
    let other = ask("t", "q").event("e").of("acme").send(&*store, at(0)).await;
    is_new(&other, 1);
    assert_eq!(other.rest.as_str(), "q");
    assert!(other.unmatched, "the announcer is the default tenant's");
    assert_eq!(waits(&*store).await.len(), 1);
    store.answer(answer("t", "q", "1"), at(1)).await.unwrap();
    let mut filter = crate::kit::any_wait();
    filter.tenant = answerback::contract::TenantId::new("acme").unwrap();
    let theirs = store.list_waits(filter).await.unwrap().found;
    assert_eq!(theirs.len(), 1);
    assert_eq!(theirs[0].state, WaitState::Open);
}

pub(crate) async fn a_question_past_its_deadline_is_over_at_once(kit: &Kit) {
    let store = kit.fresh(routed(&["a"], "r")).await;
    let with_default = ask("t", "q1").expires(at(-1)).with("default", "{\"action\":\"no\"}");
    let published = with_default.send(&*store, at(0)).await;
    is_new(&published, 1);
    assert!(!published.unmatched);
    assert_eq!(published.queued, [crate::kit::route("r")]);
    assert!(ask("t", "q2").expires(at(-1)).send(&*store, at(0)).await.queued.is_empty());
    assert_eq!(traffic(&*store).await, [seen("r", "answered", OutboxState::Queued)]);
    let wait = wait(&*store, "t", "q1").await;
    assert_eq!((wait.state, wait.closed_at), (WaitState::TimedOut, Some(at(0))));
    assert_eq!(&wait.answer.as_ref().unwrap().value[..], b"{\"action\":\"no\"}");
    assert_eq!(store.next_deadline().await.unwrap(), None);
}

pub(crate) async fn nobody_to_tell_is_told(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    let published = ask("t", "q").send(&*store, at(0)).await;
    assert!(published.unmatched && published.queued.is_empty());
    assert!(!ask("t", "q").send(&*store, at(0)).await.unmatched, "a duplicate is nothing new");
    assert!(store.destinations().await.unwrap().is_empty());
}

pub(crate) async fn many_publishers_at_once_each_get_their_own(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let store = store.clone();
            // Ten publishers of each question: one of them opens it.
            let asked = ask("t", &format!("q{}", n % 20));
            tokio::spawn(async move { asked.send(&*store, at(0)).await })
        })
        .collect();
    let mut new = 0;
    for task in tasks {
        match task.await.unwrap().outcome {
            PublishOutcome::New(generation) => {
                assert!(generation.is_first());
                new += 1;
            }
            PublishOutcome::Duplicate(generation) => assert!(generation.is_first()),
        }
    }
    assert_eq!(new, 20);
    assert_eq!(traffic(&*store).await.len(), 20);
}

pub(crate) async fn what_comes_in_is_kept_to_the_byte(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    let odd = ask("Zoë ☃ 100%/..", "q 'x' \\\" ;--")
        .question("{ \"n\" : 12345678901234567890123, \"d\":1.10,\"e\":1E400, \"z\":\"\\u0000\" }")
        .with("unknown", "[ null , -0 ]");
    let publish = odd.publish();
    let (thread_id, question_id) =
        (publish.envelope.thread_id().clone(), publish.envelope.question_id().clone());
    store.publish(vec![publish.clone()], at(0)).await.unwrap();
    let kept = wait(&*store, thread_id.as_str(), question_id.as_str()).await;
    assert_eq!(kept.envelope, *publish.envelope.text());
    assert_eq!(kept.event_id, publish.event_id);
    let leased = crate::kit::lease(&*store, &announcer("a"), 1, at(0)).await;
    assert_eq!(leased[0].wait.envelope, *publish.envelope.text());
    let value = "{ \"action\" : \"yes\", \"n\": 1.000000000000000000000001 }";
    let mut request = answer("x", "y", value);
    request.answer.thread_id = thread_id.clone();
    request.answer.question_id = question_id.clone();
    store.answer(request, at(1)).await.unwrap();
    let kept = wait(&*store, thread_id.as_str(), question_id.as_str()).await;
    let given = kept.answer.clone().unwrap();
    assert_eq!(&given.value[..], value.as_bytes());
    assert_eq!(given.answered_by.as_deref(), Some("approvers"));
    assert_eq!((given.answered_at, given.valid_until), (at(1), None));
}
