//! What happened, told in the order in which it was committed.

use crate::kit::{
    Kit, announcer, announcing, answer, ask, at, days, feed, feed_request, outbox, tenant, wait,
};
use answerback::contract::{Event, EventId, TenantId};
use answerback::core::WaitId;
use answerback::store::{Feed, FeedEvent, FeedRequest, Place, Retention, Store};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Events in short: the question's id, its generation and what happened.
fn in_short(events: &[FeedEvent]) -> Vec<String> {
    let short = |e: &FeedEvent| {
        format!("{} {} {}", e.wait.question_id, e.wait.generation, e.event.transition())
    };
    events.iter().map(short).collect()
}

async fn read(store: &dyn Store, request: FeedRequest) -> Feed {
    let (after, limit) = (request.after, request.limit);
    let feed = store.feed(request).await.unwrap();
    assert!(feed.events.len() <= limit);
    assert!(feed.next >= after);
    let places: Vec<Place> = feed.events.iter().map(|e| e.place).collect();
    assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
    assert!(places.iter().all(|place| *place > after && *place <= feed.next), "{places:?}");
    feed
}

pub(crate) async fn events_stand_in_the_order_of_their_commits(kit: &Kit) {
    let store = kit.fresh(announcing(&["all*"])).await;
    assert_eq!(store.feed_end().await.unwrap(), Place::START);
    assert!(feed(&*store, None).await.is_empty());
    ask("t", "q1").send(&*store, at(0)).await;
    ask("u", "q2").expires(at(9)).send(&*store, at(1)).await;
    ask("t", "q3").send(&*store, at(2)).await;
    store.answer(answer("t", "q1", "1"), at(3)).await.unwrap();
    store.cancel(wait(&*store, "t", "q3").await.id, at(4)).await.unwrap();
    store.time_out(10, at(9)).await.unwrap();
    let events = feed(&*store, None).await;
    assert_eq!(
        in_short(&events),
        [
            "q1 1 created",
            "q2 1 created",
            "q3 1 created",
            "q1 1 answered",
            "q3 1 cancelled",
            "q2 1 timed-out"
        ]
    );
    let when: Vec<_> = events.iter().map(|e| e.at).collect();
    assert_eq!(when, [at(0), at(1), at(2), at(3), at(4), at(9)]);
    assert_eq!(store.feed_end().await.unwrap(), events[5].place);
    for event in &events {
        let now = wait(&*store, event.wait.thread_id.as_str(), event.wait.question_id.as_str());
        assert_eq!(*event.wait, *now.await, "the wait as it stands now");
    }
    // Whoever was told of an event was told of it under the same id.
    let told: HashMap<(WaitId, Event), Option<EventId>> = outbox(&*store)
        .await
        .into_iter()
        .filter(|row| row.destination == announcer("all"))
        .map(|row| ((row.wait, row.event), row.event_id))
        .collect();
    assert_eq!(told.len(), 6);
    for event in &events {
        assert_eq!(told[&(event.wait.id, event.event)], event.event_id, "{event:?}");
        assert_eq!(event.event_id.is_none(), event.event == Event::Created);
    }
}

pub(crate) async fn what_changes_nothing_is_no_event(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    for event in ["e1", "e1", "e2", "e2"] {
        ask("t", "q").event(event).send(&*store, at(0)).await;
    }
    store.answer(answer("t", "none", "1"), at(1)).await.unwrap();
    for value in ["1", "1", "2"] {
        store.answer(answer("t", "q", value), at(1)).await.unwrap();
    }
    let id = wait(&*store, "t", "q").await.id;
    store.cancel(id, at(2)).await.unwrap();
    store.time_out(10, at(2)).await.unwrap();
    // The answer goes out again, but nothing happened to the wait.
    store.pulled(id, at(2)).await.unwrap();
    ask("t", "q").event("e3").send(&*store, at(3)).await;
    assert_eq!(in_short(&feed(&*store, None).await), ["q 1 created", "q 1 answered"]);
}

pub(crate) async fn a_question_that_takes_anothers_place_tells_of_both(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    let batch = vec![ask("t", "q").publish(), ask("t", "q").question("2").publish()];
    store.publish(batch, at(0)).await.unwrap();
    assert_eq!(
        in_short(&feed(&*store, None).await),
        ["q 1 created", "q 1 cancelled", "q 2 created"]
    );
}

pub(crate) async fn what_comes_too_late_was_created_and_timed_out(kit: &Kit) {
    let store = kit.fresh(announcing(&["all*"])).await;
    ask("t", "q").expires(at(5)).with("default", "0").send(&*store, at(5)).await;
    ask("t", "p").expires(at(6)).with("default", "0").send(&*store, at(5)).await;
    // Found past its deadline by an answer, before any sweep came by.
    store.answer(answer("t", "p", "1"), at(7)).await.unwrap();
    let events = feed(&*store, None).await;
    assert_eq!(in_short(&events), ["q 1 created", "q 1 timed-out", "p 1 created", "p 1 timed-out"]);
    assert!(events[1].event_id.is_some() && events[1].event_id != events[3].event_id);
}

pub(crate) async fn a_feed_is_of_one_tenant_and_of_one_thread_when_asked(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    for n in 0..30 {
        let thread = if n % 10 == 3 { "rare" } else { "often" };
        ask(thread, &format!("q{n}")).send(&*store, at(n)).await;
        ask("rare", &format!("q{n}")).of("other").send(&*store, at(n)).await;
    }
    assert_eq!(feed(&*store, None).await.len(), 30);
    assert_eq!(
        in_short(&feed(&*store, Some("rare")).await),
        ["q3 1 created", "q13 1 created", "q23 1 created"]
    );
    let mine = feed(&*store, None).await;
    assert!(mine.iter().all(|e| e.wait.tenant == tenant()));
    assert!(feed(&*store, Some("none")).await.is_empty());
    // Who finds nothing still gets on: the next call does not look at it again.
    let nothing = read(&*store, feed_request(Some("none"), Place::START, 10)).await;
    assert_eq!(nothing.next, store.feed_end().await.unwrap());
    let other = FeedRequest {
        tenant: TenantId::new("other").unwrap(),
        ..feed_request(Some("rare"), Place::START, 100)
    };
    assert_eq!(read(&*store, other).await.events.len(), 30);
}

pub(crate) async fn whoever_goes_on_from_anywhere_misses_nothing_and_gets_nothing_twice(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    for n in 0..12 {
        ask("t", &format!("q{n}")).send(&*store, at(n)).await;
        if n % 3 == 0 {
            store.answer(answer("t", &format!("q{n}"), "1"), at(n)).await.unwrap();
        }
    }
    let all = feed(&*store, None).await;
    assert_eq!(all.len(), 16);
    for (n, event) in all.iter().enumerate() {
        let rest = read(&*store, feed_request(None, event.place, 100)).await;
        assert_eq!(in_short(&rest.events), in_short(&all[n + 1..]));
        assert_eq!(rest.next, all[15].place);
    }
    for limit in 1..6 {
        let (mut joined, mut after) = (Vec::new(), Place::START);
        loop {
            let part = read(&*store, feed_request(None, after, limit)).await;
            joined.extend(part.events);
            after = part.next;
            if !part.more {
                break;
            }
        }
        assert_eq!(in_short(&joined), in_short(&all), "in steps of {limit}");
    }
}

pub(crate) async fn a_feed_is_bounded_by_bytes_too(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    let big = format!("\"{}\"", "x".repeat(10_000));
    for n in 0..6 {
        ask("t", &format!("q{n}")).question(&big).send(&*store, at(n)).await;
    }
    let bounded = |after, bytes| FeedRequest { bytes, ..feed_request(None, after, 100) };
    let some = read(&*store, bounded(Place::START, 25_000)).await;
    assert_eq!((some.events.len(), some.more), (2, true));
    let one = read(&*store, bounded(some.next, 1)).await;
    assert_eq!((one.events.len(), one.more), (1, true), "one at least");
    let rest = read(&*store, bounded(one.next, 1 << 20)).await;
    assert_eq!(in_short(&rest.events), ["q3 1 created", "q4 1 created", "q5 1 created"]);
}

pub(crate) async fn the_moved_waits_of_all_tenants_are_named(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    ask("t", "q").send(&*store, at(0)).await;
    let from = store.feed_end().await.unwrap();
    ask("t", "p").of("other").send(&*store, at(1)).await;
    store.answer(answer("t", "q", "1"), at(2)).await.unwrap();
    let id = wait(&*store, "t", "q").await.id;
    let all = store.moved(from, 10).await.unwrap();
    assert_eq!((all.waits.len(), all.waits[1]), (2, id));
    assert_ne!(all.waits[0], id);
    assert_eq!((all.next, all.more), (store.feed_end().await.unwrap(), false));
    let first = store.moved(from, 1).await.unwrap();
    assert_eq!((&first.waits[..], first.more), (&all.waits[..1], true));
    let second = store.moved(first.next, 1).await.unwrap();
    assert_eq!((&second.waits[..], second.next), (&all.waits[1..], all.next));
    let none = store.moved(all.next, 10).await.unwrap();
    assert_eq!((none.waits.len(), none.next, none.more), (0, all.next, false));
}

pub(crate) async fn forgotten_waits_are_out_of_the_feed_and_places_are_never_given_again(
    kit: &Kit,
) {
    let store = kit.fresh(announcing(&[])).await;
    for question in ["kept", "q1", "q2"] {
        ask("t", question).send(&*store, at(0)).await;
    }
    for question in ["q1", "q2"] {
        store.cancel(wait(&*store, "t", question).await.id, at(1)).await.unwrap();
    }
    let end = store.feed_end().await.unwrap();
    let retention =
        Retention { closed: days(30), dead: days(90), tombstones: days(90), replies: days(1) };
    assert_eq!(store.purge(retention, 10, at(0).after(days(31))).await.unwrap(), 2);
    assert_eq!(in_short(&feed(&*store, None).await), ["kept 1 created"]);
    assert_eq!(store.moved(Place::START, 10).await.unwrap().waits.len(), 1);
    assert!(store.feed_end().await.unwrap() <= end);
    ask("t", "new").send(&*store, at(0).after(days(32))).await;
    let events = feed(&*store, None).await;
    assert_eq!(in_short(&events), ["kept 1 created", "new 1 created"]);
    assert!(events[1].place > end, "{events:?} after {end:?}");
}

pub(crate) async fn a_reader_at_the_end_sees_everything_once_while_many_write(kit: &Kit) {
    const WRITERS: usize = 8;
    const EACH: usize = 25;
    let store = kit.fresh(announcing(&["a"])).await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..EACH {
                    let question = format!("q{writer}-{n}");
                    let thread = format!("t{}", n % 3);
                    ask(&thread, &question).send(&*store, at(0)).await;
                    match n % 3 {
                        0 => drop(store.answer(answer(&thread, &question, "1"), at(1)).await),
                        1 => {
                            let id = wait(&*store, &thread, &question).await.id;
                            store.cancel(id, at(1)).await.unwrap();
                        }
                        _ => {}
                    }
                }
            })
        })
        .collect();
    let is_over = {
        let store = store.clone();
        tokio::spawn(async move {
            for writer in writers {
                writer.await.unwrap();
            }
            drop(store);
        })
    };
    // Read while they write, in small steps, and on from wherever the last step ended.
    let mut seen: Vec<FeedEvent> = Vec::new();
    let mut after = Place::START;
    loop {
        let last = is_over.is_finished();
        let part = read(&*store, feed_request(None, after, 7)).await;
        after = part.next;
        seen.extend(part.events);
        if last && !part.more {
            break;
        }
        tokio::task::yield_now().await;
    }
    let ended = EACH.div_ceil(3) + (EACH - 1).div_ceil(3);
    assert_eq!(seen.len(), WRITERS * (EACH + ended));
    let mut created = HashSet::new();
    let mut over = HashSet::new();
    for event in &seen {
        let id = event.wait.id;
        match event.event {
            Event::Created => assert!(created.insert(id), "created twice: {id:?}"),
            _ => {
                assert!(created.contains(&id), "ended before it was created: {id:?}");
                assert!(over.insert(id), "ended twice: {id:?}");
            }
        }
    }
    assert_eq!(in_short(&seen), in_short(&feed(&*store, None).await));
    let store: Arc<dyn Store> = store;
    assert_eq!(store.feed_end().await.unwrap(), after);
}
