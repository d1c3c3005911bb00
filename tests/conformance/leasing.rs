//! Lanes take messages and say what became of them.

use crate::kit::{
    Kit, announcer, announcing, answer, ask, at, dead, delivered, lease, lease_request, outbox,
    retry_at, settled, wait,
};
use answerback::core::{OutboxId, OutboxState};
use answerback::store::{LeaseRequest, Settled, Store};
use std::collections::HashSet;
use std::sync::Arc;

async fn asked(store: &dyn Store, questions: usize) {
    let batch = (0..questions).map(|n| ask(&format!("t{n}"), &format!("q{n}")).publish());
    store.publish(batch.collect(), at(0)).await.unwrap();
}

pub(crate) async fn nothing_is_leased_twice_by_many_lanes(kit: &Kit) {
    const MESSAGES: usize = 400;
    let store = kit.fresh(announcing(&["a", "b"])).await;
    asked(&*store, MESSAGES).await;
    let lane = async |store: Arc<dyn Store>, name: &'static str| {
        let mut taken = Vec::new();
        loop {
            let messages = lease(&*store, &announcer(name), 7, at(1)).await;
            if messages.is_empty() {
                return taken;
            }
            // Every other message is settled while others lease.
            let half = messages.iter().step_by(2).map(delivered).collect();
            store.settle(half, at(1)).await.unwrap();
            taken.extend(messages.iter().map(|m| m.id));
        }
    };
    let mut tasks = Vec::new();
    for n in 0..10 {
        let (store, name) = (store.clone(), if n % 2 == 0 { "a" } else { "b" });
        tasks.push(tokio::spawn(lane(store, name)));
    }
    let mut all: Vec<OutboxId> = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    assert_eq!(all.len(), 2 * MESSAGES);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 2 * MESSAGES);
}

pub(crate) async fn a_lease_that_runs_out_is_given_again_and_its_settlement_lost(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    asked(&*store, 1).await;
    let first = lease(&*store, &announcer("a"), 9, at(0)).await;
    assert!(lease(&*store, &announcer("a"), 9, at(59)).await.is_empty());
    let second = lease(&*store, &announcer("a"), 9, at(60)).await;
    assert_eq!((second.len(), second[0].id), (1, first[0].id));
    assert_ne!(second[0].lease, first[0].lease);
    for lost in [dead(&first[0]), retry_at(&first[0], at(999)), delivered(&first[0])] {
        assert!(store.settle(vec![lost], at(61)).await.unwrap().is_empty());
        assert_eq!(outbox(&*store).await[0].state, OutboxState::Queued);
        assert_eq!(outbox(&*store).await[0].attempts, 0);
    }
    assert!(lease(&*store, &announcer("a"), 9, at(61)).await.is_empty(), "the second holds");
    store.settle(vec![delivered(&second[0]), dead(&second[0])], at(62)).await.unwrap();
    let row = &outbox(&*store).await[0];
    assert_eq!((row.state, row.attempts), (OutboxState::Delivered, 1));
}

pub(crate) async fn a_failed_message_is_due_when_it_was_said(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    asked(&*store, 2).await;
    let first = lease(&*store, &announcer("a"), 1, at(0)).await;
    store.settle(vec![retry_at(&first[0], at(30))], at(1)).await.unwrap();
    let row = &outbox(&*store).await[0];
    assert_eq!((row.state, row.attempts), (OutboxState::Queued, 1));
    assert_eq!((row.next_attempt_at, row.last_error.as_deref()), (Some(at(30)), Some("busy")));
    let other = lease(&*store, &announcer("a"), 9, at(29)).await;
    assert_eq!(other.len(), 1);
    assert_ne!(other[0].id, first[0].id);
    let again = lease(&*store, &announcer("a"), 9, at(30)).await;
    assert_eq!((again.len(), again[0].id, again[0].attempts), (1, first[0].id, 1));
    assert_eq!(again[0].queued_at, at(0));
    // At once, even though later messages were leased meanwhile.
    store.settle(vec![retry_at(&again[0], at(30))], at(30)).await.unwrap();
    assert_eq!(lease(&*store, &announcer("a"), 9, at(30)).await[0].attempts, 2);
}

pub(crate) async fn released_messages_are_due_at_once(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    asked(&*store, 3).await;
    let first = lease(&*store, &announcer("a"), 3, at(0)).await;
    let back = settled(&first[1], Settled::Released);
    assert_eq!(store.settle(vec![back], at(0)).await.unwrap(), [announcer("a")]);
    let again = lease(&*store, &announcer("a"), 9, at(0)).await;
    assert_eq!((again.len(), again[0].id, again[0].attempts), (1, first[1].id, 0));
}

pub(crate) async fn a_lease_is_bounded_by_number_and_by_bytes(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    let big = format!("\"{}\"", "x".repeat(10_000));
    let batch = (0..10).map(|n| ask("t", &format!("q{n}")).question(&big).publish()).collect();
    store.publish(batch, at(0)).await.unwrap();
    let three = LeaseRequest { bytes: 35_000, ..lease_request(&announcer("a"), 9) };
    let got = store.lease(three, at(0)).await.unwrap();
    assert_eq!(got.messages.len(), 3);
    assert!(got.next_due.is_some_and(|due| due <= at(0)));
    let one = LeaseRequest { bytes: 1, ..lease_request(&announcer("a"), 9) };
    assert_eq!(store.lease(one, at(0)).await.unwrap().messages.len(), 1, "one at least");
    assert_eq!(lease(&*store, &announcer("a"), 2, at(0)).await.len(), 2);
    assert_eq!(lease(&*store, &announcer("a"), 0, at(0)).await.len(), 0);
    assert_eq!(lease(&*store, &announcer("a"), 99, at(0)).await.len(), 4);
}

pub(crate) async fn next_due_says_when_to_come_back(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    let next = async |now| store.lease(lease_request(&announcer("a"), 1), at(now)).await.unwrap();
    assert_eq!(next(0).await.next_due, None);
    asked(&*store, 2).await;
    let first = next(0).await;
    assert!(first.next_due.is_some_and(|due| due <= at(0)), "there is one more");
    let second = next(0).await;
    assert_eq!(second.next_due, Some(at(60)), "when the leases run out");
    store.settle(vec![retry_at(&first.messages[0], at(20))], at(1)).await.unwrap();
    assert_eq!(next(2).await.next_due, Some(at(20)));
    store.settle(vec![delivered(&second.messages[0])], at(3)).await.unwrap();
    let last = next(20).await;
    assert_eq!(last.messages.len(), 1);
    store.settle(vec![delivered(&last.messages[0])], at(21)).await.unwrap();
    assert_eq!(next(22).await.next_due, None);
}

pub(crate) async fn what_is_settled_while_others_lease_stays_settled(kit: &Kit) {
    const MESSAGES: usize = 300;
    let store = kit.fresh(announcing(&["a"])).await;
    asked(&*store, MESSAGES).await;
    let mut taken = HashSet::new();
    let mut settling = Vec::new();
    while taken.len() < MESSAGES {
        let messages = lease(&*store, &announcer("a"), 5, at(0)).await;
        for message in &messages {
            assert!(taken.insert(message.id), "{:?} came twice", message.id);
        }
        let store = store.clone();
        settling.push(tokio::spawn(async move {
            store.settle(messages.iter().map(delivered).collect(), at(0)).await.unwrap();
        }));
    }
    for task in settling {
        task.await.unwrap();
    }
    assert!(lease(&*store, &announcer("a"), 9, at(1_000)).await.is_empty());
    assert!(store.depths().await.unwrap().is_empty());
}

pub(crate) async fn a_delivery_of_a_withdrawn_message_is_recorded(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    asked(&*store, 2).await;
    let out = lease(&*store, &announcer("a"), 2, at(0)).await;
    for n in 0..2 {
        store.answer(answer(&format!("t{n}"), &format!("q{n}"), "1"), at(1)).await.unwrap();
    }
    let ends = vec![delivered(&out[0]), retry_at(&out[1], at(5))];
    store.settle(ends, at(2)).await.unwrap();
    let rows = outbox(&*store).await;
    assert_eq!((rows[0].state, rows[0].finished_at), (OutboxState::Delivered, Some(at(2))));
    assert_eq!((rows[1].state, rows[1].finished_at), (OutboxState::Withdrawn, Some(at(1))));
    assert!(lease(&*store, &announcer("a"), 9, at(100)).await.is_empty());
}

pub(crate) async fn messages_of_one_wait_carry_it(kit: &Kit) {
    let store = kit.fresh(announcing(&["a*"])).await;
    ask("t", "q").send(&*store, at(0)).await;
    let created = lease(&*store, &announcer("a"), 1, at(0)).await;
    assert_eq!(*created[0].wait, *wait(&*store, "t", "q").await);
    store.settle(vec![delivered(&created[0])], at(0)).await.unwrap();
    store.answer(answer("t", "q", "[1]"), at(1)).await.unwrap();
    let answered = lease(&*store, &announcer("a"), 1, at(1)).await;
    assert_eq!(answered[0].destination, announcer("a"));
    assert_eq!((answered[0].event.name(), answered[0].repeat), ("wait.answered", 0));
    assert!(answered[0].event_id.is_some());
    assert_eq!(&answered[0].wait.answer.as_ref().unwrap().value[..], b"[1]");
    assert_eq!(*answered[0].wait, *wait(&*store, "t", "q").await);
}

pub(crate) async fn long_errors_are_cut(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    asked(&*store, 1).await;
    let out = lease(&*store, &announcer("a"), 1, at(0)).await;
    let error = "ü".repeat(50_000);
    let failed = settled(&out[0], Settled::Dead { reason: "refused", error });
    store.settle(vec![failed], at(0)).await.unwrap();
    let kept = outbox(&*store).await.remove(0).last_error.unwrap();
    assert!(kept.len() < 10_000 && kept.starts_with('ü'));
}
