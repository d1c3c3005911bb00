//! What must not overtake what.

use crate::kit::{
    Kit, announcer, announcing, answer, ask, at, dead, delivered, lease, outbox, retry_at, route,
    routed, settled,
};
use answerback::core::{Destination, Leased, OutboxId, OutboxState};
use answerback::store::{Retried, Retry, Settled, Store};

fn questions(messages: &[Leased]) -> Vec<String> {
    let mut ids: Vec<_> = messages.iter().map(|m| m.wait.question_id.as_str().to_owned()).collect();
    ids.sort();
    ids
}

async fn asked(store: &dyn Store, all: &[(&str, &str)]) {
    for (thread, question) in all {
        ask(thread, question).send(store, at(0)).await;
    }
}

pub(crate) async fn messages_of_one_order_go_out_one_by_one(kit: &Kit) {
    let store = kit.fresh(announcing(&["!a", "b"])).await;
    asked(&*store, &[("t", "q1"), ("t", "q2"), ("u", "q3"), ("t", "q4")]).await;
    let (a, b) = (announcer("a"), announcer("b"));
    assert_eq!(lease(&*store, &b, 9, at(0)).await.len(), 4, "b is in no order");
    let first = lease(&*store, &a, 9, at(0)).await;
    assert_eq!(questions(&first), ["q1", "q3"]);
    assert!(lease(&*store, &a, 9, at(0)).await.is_empty());
    let q1 = first.iter().find(|m| m.wait.question_id.as_str() == "q1").unwrap();
    assert_eq!(store.settle(vec![delivered(q1)], at(1)).await.unwrap(), std::slice::from_ref(&a));
    let second = lease(&*store, &a, 9, at(1)).await;
    assert_eq!(questions(&second), ["q2"]);
    assert_eq!(
        store.settle(vec![delivered(&second[0])], at(1)).await.unwrap(),
        std::slice::from_ref(&a)
    );
    let third = lease(&*store, &a, 9, at(1)).await;
    assert_eq!(questions(&third), ["q4"]);
    assert!(store.settle(vec![delivered(&third[0])], at(1)).await.unwrap().is_empty());
    asked(&*store, &[("t", "q5")]).await;
    assert_eq!(questions(&lease(&*store, &a, 9, at(1)).await), ["q5"]);
}

pub(crate) async fn a_failing_message_holds_back_its_own_thread_only(kit: &Kit) {
    let store = kit.fresh(announcing(&["!a"])).await;
    asked(&*store, &[("t", "q1"), ("t", "q2"), ("u", "q3")]).await;
    let a = announcer("a");
    let out = lease(&*store, &a, 9, at(0)).await;
    let ends: Vec<_> = out.iter().map(|m| retry_at(m, at(50))).collect();
    assert!(store.settle(ends, at(1)).await.unwrap().is_empty());
    assert!(lease(&*store, &a, 9, at(49)).await.is_empty());
    assert_eq!(questions(&lease(&*store, &a, 9, at(50)).await), ["q1", "q3"]);
}

pub(crate) async fn a_dead_message_lets_the_next_one_go(kit: &Kit) {
    let store = kit.fresh(announcing(&["!a"])).await;
    asked(&*store, &[("t", "q1"), ("t", "q2")]).await;
    let a = announcer("a");
    let out = lease(&*store, &a, 9, at(0)).await;
    assert_eq!(store.settle(vec![dead(&out[0])], at(1)).await.unwrap(), std::slice::from_ref(&a));
    assert_eq!(questions(&lease(&*store, &a, 9, at(1)).await), ["q2"]);
}

pub(crate) async fn a_withdrawn_message_that_is_out_is_not_overtaken(kit: &Kit) {
    let store = kit.fresh(announcing(&["!a*"])).await;
    asked(&*store, &[("t", "q1"), ("t", "q2")]).await;
    let a = announcer("a");
    let created = lease(&*store, &a, 9, at(0)).await;
    store.answer(answer("t", "q1", "1"), at(1)).await.unwrap();
    let waiting = store.lease(crate::kit::lease_request(&a, 9), at(2)).await.unwrap();
    assert!(waiting.messages.is_empty(), "the first is still on the wire");
    assert_eq!(waiting.next_due, Some(at(60)));
    for (n, end) in [delivered(&created[0]), delivered(&created[0])].into_iter().enumerate() {
        let due = store.settle(vec![end], at(3)).await.unwrap();
        assert_eq!(due.len(), usize::from(n == 0));
    }
    assert_eq!(outbox(&*store).await[0].state, OutboxState::Delivered);
    // What was queued first goes first: q2's question, then q1's answer.
    let next = lease(&*store, &a, 9, at(3)).await;
    assert_eq!(questions(&next), ["q2"]);
    // A withdrawn one that waits in line stands in nobody's way.
    store.answer(answer("t", "q2", "1"), at(4)).await.unwrap();
    let back = settled(&next[0], Settled::Released);
    assert_eq!(store.settle(vec![back], at(5)).await.unwrap(), std::slice::from_ref(&a));
    for question in ["q1", "q2"] {
        let answered = lease(&*store, &a, 9, at(6)).await;
        assert_eq!(questions(&answered), [question]);
        assert_eq!(answered[0].event.name(), "wait.answered");
        store.settle(vec![delivered(&answered[0])], at(6)).await.unwrap();
    }
    // The answers wait to be fetched, nothing else waits.
    assert_eq!(store.destinations().await.unwrap(), [Destination::Pull]);
}

pub(crate) async fn answers_of_a_thread_go_one_by_one_whatever_their_way(kit: &Kit) {
    let mut rules = routed(&[], "r2");
    let mut first = rules.routes[0].clone();
    first.name = answerback::core::Name::new("r1");
    first.matcher.source_functions = vec!["f".to_owned()];
    rules.routes.insert(0, first);
    let store = kit.fresh(rules).await;
    let by_first = |q: &str| ask("t", q).with("source", "{\"function\":\"f\"}");
    by_first("q1").send(&*store, at(0)).await;
    ask("t", "q2").send(&*store, at(0)).await;
    ask("u", "q3").send(&*store, at(0)).await;
    for (thread, question) in [("t", "q1"), ("t", "q2"), ("u", "q3")] {
        store.answer(answer(thread, question, "1"), at(1)).await.unwrap();
    }
    let one = lease(&*store, &route("r1"), 9, at(1)).await;
    assert_eq!(questions(&one), ["q1"]);
    assert_eq!(questions(&lease(&*store, &route("r2"), 9, at(1)).await), ["q3"]);
    assert_eq!(store.settle(vec![dead(&one[0])], at(2)).await.unwrap(), [route("r2")]);
    assert_eq!(questions(&lease(&*store, &route("r2"), 9, at(2)).await), ["q2"]);
}

pub(crate) async fn a_retried_message_gets_in_line(kit: &Kit) {
    let store = kit.fresh(announcing(&["!a"])).await;
    asked(&*store, &[("t", "q1"), ("t", "q2"), ("t", "q3")]).await;
    let a = announcer("a");
    let q1 = lease(&*store, &a, 9, at(0)).await;
    store.settle(vec![dead(&q1[0])], at(1)).await.unwrap();
    let q2 = lease(&*store, &a, 9, at(1)).await;
    assert_eq!(questions(&q2), ["q2"]);
    let retry = |id| Retry::Announcement(OutboxId(id));
    let retried = store.retry(crate::kit::tenant(), retry(q1[0].id.0), at(2)).await.unwrap();
    assert_eq!(retried, Retried::Queued(1, vec![a.clone()]));
    assert!(lease(&*store, &a, 9, at(2)).await.is_empty(), "q2 is out");
    let mut sent = Vec::new();
    let mut out = q2;
    while let Some(message) = out.pop() {
        sent.push(message.wait.question_id.as_str().to_owned());
        store.settle(vec![delivered(&message)], at(3)).await.unwrap();
        out = lease(&*store, &a, 9, at(3)).await;
        assert!(out.len() <= 1);
    }
    assert_eq!(sent, ["q2", "q1", "q3"]);
}
