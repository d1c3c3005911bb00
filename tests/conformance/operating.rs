//! What operators and the daemon itself do beside the traffic.

use crate::kit::{
    Kit, announcer, announcing, answer, ask, at, days, dead, delivered, lease, outbox, retry_at,
    route, routed, secs, tenant,
};
use answerback::contract::TenantId;
use answerback::core::{Destination, Name, OutboxId, OutboxState};
use answerback::store::{Depth, KeptReply, Retried, Retry, Store};

/// Publishes questions and lets their announcements die.
async fn all_die(store: &dyn Store, to: &Destination, questions: usize) -> Vec<OutboxId> {
    for n in 0..questions {
        ask("t", &format!("q{n}")).send(store, at(0)).await;
    }
    let mut died = Vec::new();
    while died.len() < questions {
        let out = lease(store, to, 500, at(0)).await;
        assert!(!out.is_empty());
        store.settle(out.iter().map(dead).collect(), at(1)).await.unwrap();
        died.extend(out.iter().map(|m| m.id));
    }
    died
}

pub(crate) async fn dead_messages_are_sent_again_with_a_fresh_age(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    let died = all_die(&*store, &announcer("a"), 1).await;
    let row = outbox(&*store).await.remove(0);
    assert_eq!((row.state, row.finished_at, row.attempts), (OutboxState::Dead, Some(at(1)), 1));
    assert_eq!(
        (row.reason.as_deref(), row.last_error.as_deref()),
        (Some("refused"), Some("no thanks"))
    );
    let retried = store.retry(tenant(), Retry::Announcement(died[0]), at(500)).await.unwrap();
    assert_eq!(retried, Retried::Queued(1, vec![announcer("a")]));
    let row = outbox(&*store).await.remove(0);
    assert_eq!((row.state, row.queued_at), (OutboxState::Queued, at(500)));
    assert_eq!((row.finished_at, row.reason), (None, None));
    let out = lease(&*store, &announcer("a"), 1, at(500)).await;
    assert_eq!((out[0].id, out[0].queued_at), (died[0], at(500)));
}

pub(crate) async fn what_cannot_be_sent_again_says_so(kit: &Kit) {
    let store = kit.fresh(routed(&["a"], "r")).await;
    let died = all_die(&*store, &announcer("a"), 1).await;
    let retry = async |what| store.retry(tenant(), what, at(9)).await.unwrap();
    let other = TenantId::new("acme").unwrap();
    let foreign = store.retry(other, Retry::Announcement(died[0]), at(9)).await.unwrap();
    assert_eq!(foreign, Retried::NotFound);
    assert_eq!(retry(Retry::Delivery(died[0])).await, Retried::NotFound);
    assert_eq!(retry(Retry::Announcement(OutboxId(999))).await, Retried::NotFound);
    store.answer(answer("t", "q0", "1"), at(2)).await.unwrap();
    let pointless = Retried::NotRetryable(OutboxState::Dead);
    assert_eq!(retry(Retry::Announcement(died[0])).await, pointless);
    let delivery = lease(&*store, &route("r"), 1, at(2)).await.remove(0);
    let queued = Retried::NotRetryable(OutboxState::Queued);
    assert_eq!(retry(Retry::Delivery(delivery.id)).await, queued);
    store.settle(vec![dead(&delivery)], at(3)).await.unwrap();
    let again = Retried::Queued(1, vec![route("r")]);
    assert_eq!(retry(Retry::Delivery(delivery.id)).await, again, "an answer is never pointless");
    let delivery = lease(&*store, &route("r"), 1, at(9)).await.remove(0);
    store.settle(vec![delivered(&delivery)], at(9)).await.unwrap();
    let over = Retried::NotRetryable(OutboxState::Delivered);
    assert_eq!(retry(Retry::Delivery(delivery.id)).await, over);
}

pub(crate) async fn all_dead_of_an_announcer_are_queued_and_it_wakes(kit: &Kit) {
    const DEAD: usize = 1_200;
    let store = kit.fresh(announcing(&["a"])).await;
    let a = announcer("a");
    all_die(&*store, &a, DEAD).await;
    store.answer(answer("t", "q7", "1"), at(2)).await.unwrap();
    store.set_paused(a.clone(), true).await.unwrap();
    let name = || Retry::Announcer(Name::new("a"));
    let foreign = store.retry(TenantId::new("acme").unwrap(), name(), at(3)).await.unwrap();
    assert_eq!(foreign, Retried::Queued(0, Vec::new()));
    store.set_paused(a.clone(), true).await.unwrap();
    let retried = store.retry(tenant(), name(), at(3)).await.unwrap();
    assert_eq!(retried, Retried::Queued(DEAD - 1, vec![a.clone()]));
    assert!(store.paused().await.unwrap().is_empty());
    assert_eq!(lease(&*store, &a, 2_000, at(3)).await.len(), DEAD - 1);
}

pub(crate) async fn removed_announcers_lose_their_queue_and_get_it_back(kit: &Kit) {
    const QUEUED: usize = 700;
    let store = kit.fresh(routed(&["!a", "b"], "r")).await;
    let batch = (0..QUEUED).map(|n| ask(&format!("t{}", n % 3), &format!("q{n}")).publish());
    store.publish(batch.collect(), at(0)).await.unwrap();
    store.answer(answer("t0", "q0", "1"), at(1)).await.unwrap();
    let retired = store.retire(vec![announcer("b"), route("other")], at(2)).await.unwrap();
    assert_eq!(retired, u64::try_from(QUEUED).unwrap(), "one is withdrawn, one is a delivery");
    let rows = outbox(&*store).await;
    let reasons = |label: &str| {
        let of = rows.iter().filter(|row| row.destination.label() == label);
        of.filter_map(|row| row.reason.as_deref()).collect::<Vec<_>>()
    };
    assert_eq!(reasons("a"), vec!["announcer-removed"; QUEUED - 1]);
    assert_eq!(reasons("r"), ["route-removed"]);
    assert!(reasons("b").is_empty());
    assert_eq!(store.retire(vec![announcer("b")], at(3)).await.unwrap(), 0);
    // Back in the configuration.
    let retried = store.retry(tenant(), Retry::Announcer(Name::new("a")), at(4)).await.unwrap();
    assert_eq!(retried, Retried::Queued(QUEUED - 1, vec![announcer("a")]));
    let mut sent = 0;
    loop {
        let out = lease(&*store, &announcer("a"), 9, at(5)).await;
        if out.is_empty() {
            break;
        }
        sent += out.len();
        store.settle(out.iter().map(delivered).collect(), at(5)).await.unwrap();
    }
    assert_eq!(sent, QUEUED - 1, "none is stuck behind another");
}

pub(crate) async fn a_paused_destination_gives_nothing(kit: &Kit) {
    let store = kit.fresh(announcing(&["a", "b"])).await;
    let a = announcer("a");
    store.set_paused(a.clone(), true).await.unwrap();
    ask("t", "q").send(&*store, at(0)).await;
    assert!(lease(&*store, &a, 9, at(0)).await.is_empty());
    assert_eq!(lease(&*store, &announcer("b"), 9, at(0)).await.len(), 1);
    assert_eq!(store.paused().await.unwrap(), std::slice::from_ref(&a));
    store.set_paused(a.clone(), false).await.unwrap();
    assert!(store.paused().await.unwrap().is_empty());
    assert_eq!(lease(&*store, &a, 9, at(0)).await.len(), 1);
}

pub(crate) async fn depths_count_what_is_queued(kit: &Kit) {
    let store = kit.fresh(routed(&["a", "!b"], "r")).await;
    let depth = |destination: Destination, queued, oldest| Depth {
        destination,
        queued,
        oldest: Some(at(oldest)),
    };
    let depths = async || {
        let mut depths = store.depths().await.unwrap();
        depths.sort_by(|x, y| x.destination.cmp(&y.destination));
        depths
    };
    assert!(depths().await.is_empty());
    ask("t", "q1").send(&*store, at(0)).await;
    ask("t", "q2").send(&*store, at(10)).await;
    assert_eq!(depths().await, [depth(announcer("a"), 2, 0), depth(announcer("b"), 2, 0)]);
    let out = lease(&*store, &announcer("a"), 1, at(10)).await;
    assert_eq!(depths().await[0], depth(announcer("a"), 2, 0), "leased is queued");
    store.settle(vec![delivered(&out[0])], at(11)).await.unwrap();
    assert_eq!(depths().await[0], depth(announcer("a"), 1, 10));
    let out = lease(&*store, &announcer("a"), 1, at(11)).await;
    store.settle(vec![retry_at(&out[0], at(99))], at(11)).await.unwrap();
    assert_eq!(depths().await[0], depth(announcer("a"), 1, 10));
    store.answer(answer("t", "q1", "1"), at(12)).await.unwrap();
    store.answer(answer("t", "q2", "1"), at(13)).await.unwrap();
    assert_eq!(depths().await, [depth(route("r"), 2, 12)]);
    assert_eq!(store.destinations().await.unwrap(), [route("r")]);
}

pub(crate) async fn replies_are_kept_for_a_day_and_the_first_stays(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    let reply = |n: u8| KeptReply { body_hash: [n; 32], status: 202, body: vec![n; 3] };
    let kept = async |scope: &str, now| store.kept_reply(scope.to_owned(), now).await.unwrap();
    assert_eq!(kept("k", at(0)).await, None);
    store.keep_reply("k".to_owned(), reply(1), at(0)).await.unwrap();
    store.keep_reply("k".to_owned(), reply(2), at(5)).await.unwrap();
    store.keep_reply("other".to_owned(), reply(3), at(5)).await.unwrap();
    assert_eq!(kept("k", at(86_399)).await, Some(reply(1)));
    let later = at(0).after(days(1) + secs(1));
    assert_eq!(kept("k", later).await, None);
    store.keep_reply("k".to_owned(), reply(4), later).await.unwrap();
    assert_eq!(kept("k", later).await, Some(reply(4)));
}

pub(crate) async fn a_probe_passes_until_closed(kit: &Kit) {
    let store = kit.fresh(announcing(&["a"])).await;
    store.probe(at(0)).await.unwrap();
    store.probe(at(0)).await.unwrap();
    // What is under way when it closes is answered, one way or the other.
    let busy: Vec<_> = (0..20)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                store.publish(vec![ask("t", &n.to_string()).publish()], at(0)).await.is_ok()
            })
        })
        .collect();
    store.close().await;
    store.close().await;
    for task in busy {
        task.await.unwrap();
    }
    assert!(store.probe(at(0)).await.is_err());
    assert!(store.next_deadline().await.is_err());
    assert!(store.lease(crate::kit::lease_request(&announcer("a"), 1), at(0)).await.is_err());
}
