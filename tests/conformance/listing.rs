//! Finding and listing.

use crate::kit::{
    Kit, announcer, announcing, answer, any_wait, ask, at, dead, generation, lease, question,
    routed, tenant, thread, wait,
};
use answerback::contract::WaitState;
use answerback::core::{Name, OutboxState, Wait};
use answerback::store::{Found, OutboxFilter, WaitFilter, WaitQuery};
use std::sync::Arc;

pub(crate) async fn a_wait_is_found_by_what_is_known_of_it(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    ask("t", "q").question("1").send(&*store, at(0)).await;
    ask("t", "q").question("2").send(&*store, at(1)).await;
    ask("t", "alone").send(&*store, at(1)).await;
    let query = |q: &str| WaitQuery {
        tenant: tenant(),
        question_id: question(q),
        thread_id: None,
        generation: None,
    };
    let found = async |query| match store.find(query).await.unwrap() {
        Found::One(wait) => Some((wait.thread_id.as_str().to_owned(), wait.generation.get())),
        Found::None => None,
        Found::Ambiguous(threads) => panic!("{threads:?}"),
    };
    assert_eq!(found(query("q")).await, Some(("t".to_owned(), 2)));
    let first = WaitQuery { generation: Some(generation(1)), ..query("q") };
    assert_eq!(found(first.clone()).await, Some(("t".to_owned(), 1)));
    assert_eq!(found(WaitQuery { generation: Some(generation(3)), ..query("q") }).await, None);
    assert_eq!(found(query("alone")).await, Some(("t".to_owned(), 1)));
    assert_eq!(found(query("nothing")).await, None);
    ask("u", "q").send(&*store, at(2)).await;
    match store.find(query("q")).await.unwrap() {
        Found::Ambiguous(mut threads) => {
            threads.sort();
            assert_eq!(threads, [thread("t"), thread("u")]);
        }
        other => panic!("{other:?}"),
    }
    let named = |t: &str| WaitQuery { thread_id: Some(thread(t)), ..query("q") };
    assert_eq!(found(named("t")).await, Some(("t".to_owned(), 2)));
    assert_eq!(found(named("u")).await, Some(("u".to_owned(), 1)));
    assert_eq!(found(named("v")).await, None);
    let second = WaitQuery { generation: Some(generation(2)), ..query("q") };
    assert_eq!(found(second).await, Some(("t".to_owned(), 2)), "only one thread has a second");
}

fn ids(waits: &[Arc<Wait>]) -> Vec<&str> {
    waits.iter().map(|w| w.question_id.as_str()).collect()
}

pub(crate) async fn waits_are_listed_newest_first_by_every_filter(kit: &Kit) {
    let mut rules = announcing(&["all", "some"]);
    rules.announcers[1].matcher.thread_prefixes = vec!["u".to_owned()];
    let store = kit.fresh(rules).await;
    ask("t", "q1").with("tags", "{\"team\":\"fin\",\"n\":1.0}").send(&*store, at(0)).await;
    ask("u", "q2").with("tags", "{\"team\":\"ops\",\"n\":1}").send(&*store, at(1)).await;
    ask("t", "q3").with("tags", "{\"team\":\"fin\",\"ok\":true}").send(&*store, at(2)).await;
    ask("t", "q4").expires(at(4)).send(&*store, at(3)).await;
    store.answer(answer("t", "q1", "1"), at(3)).await.unwrap();
    store.time_out(9, at(5)).await.unwrap();
    store.cancel(wait(&*store, "t", "q3").await.id, at(5)).await.unwrap();
    let list = async |change: &dyn Fn(&mut WaitFilter)| {
        let mut filter = any_wait();
        change(&mut filter);
        let waits = store.list_waits(filter).await.unwrap().found;
        ids(&waits).join(" ")
    };
    let tags = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(list(&|_| ()).await, "q4 q3 q2 q1");
    assert_eq!(list(&|f| f.limit = 2).await, "q4 q3");
    assert_eq!(list(&|f| f.states = vec![WaitState::Open]).await, "q2");
    let over = vec![WaitState::Completed, WaitState::TimedOut];
    assert_eq!(list(&|f| f.states = over.clone()).await, "q4 q1");
    let mixed = vec![WaitState::Open, WaitState::Cancelled];
    assert_eq!(list(&|f| f.states = mixed.clone()).await, "q3 q2");
    assert_eq!(list(&|f| f.thread_id = Some(thread("t"))).await, "q4 q3 q1");
    assert_eq!(list(&|f| f.run_id = Some("u".to_owned())).await, "q2");
    assert_eq!(list(&|f| f.run_id = Some("t".to_owned())).await, "q4 q3 q1");
    let in_run = |f: &mut WaitFilter| {
        (f.thread_id, f.run_id) = (Some(thread("t")), Some("u".to_owned()));
    };
    assert_eq!(list(&in_run).await, "");
    let open_in_thread = |f: &mut WaitFilter| {
        (f.thread_id, f.states) = (Some(thread("u")), vec![WaitState::Open]);
    };
    assert_eq!(list(&open_in_thread).await, "q2");
    assert_eq!(list(&|f| f.tags = tags(&[("team", "fin")])).await, "q3 q1");
    assert_eq!(list(&|f| f.tags = tags(&[("team", "fin"), ("ok", "true")])).await, "q3");
    assert_eq!(list(&|f| f.tags = tags(&[("n", "1.0")])).await, "q1");
    assert_eq!(list(&|f| f.tags = tags(&[("team", "nobody")])).await, "");
    assert_eq!(list(&|f| f.announcer = Some(Name::new("some"))).await, "q2");
    assert_eq!(list(&|f| f.announcer = Some(Name::new("nobody"))).await, "");
    let q3 = wait(&*store, "t", "q3").await.id;
    assert_eq!(list(&|f| f.before = Some(q3)).await, "q2 q1");
    let both = |f: &mut WaitFilter| {
        f.thread_id = Some(thread("t"));
        f.states = vec![WaitState::Cancelled];
        f.tags = tags(&[("team", "fin")]);
    };
    assert_eq!(list(&both).await, "q3");
}

pub(crate) async fn pages_join_without_gap_or_overlap(kit: &Kit) {
    const WAITS: usize = 1_300;
    let store = kit.fresh(announcing(&["a"])).await;
    // One in a hundred has the tag, so that a list looks at far more than it gives.
    let batch = (0..WAITS).map(|n| {
        let tag = if n % 100 == 0 { "{\"x\":\"rare\"}" } else { "{}" };
        ask("t", &format!("q{n}")).with("tags", tag).publish()
    });
    store.publish(batch.collect(), at(0)).await.unwrap();
    let mut filter = WaitFilter { limit: 70, ..any_wait() };
    let mut all = Vec::new();
    loop {
        let page = store.list_waits(filter.clone()).await.unwrap();
        let (page, next) = (page.found, page.next);
        all.extend(page.iter().map(|w| w.id));
        if next.is_none() {
            break;
        }
        filter.before = next;
    }
    assert_eq!(all.len(), WAITS);
    assert!(all.is_sorted_by(|a, b| a > b));
    let mut rare = WaitFilter { limit: 5, ..any_wait() };
    rare.tags = vec![("x".to_owned(), "rare".to_owned())];
    let mut found = 0;
    loop {
        let page = store.list_waits(rare.clone()).await.unwrap();
        let (page, next) = (page.found, page.next);
        found += page.len();
        if next.is_none() {
            break;
        }
        rare.before = next;
    }
    assert_eq!(found, WAITS / 100);
    let mut filter = outbox_filter(true);
    filter.limit = 600;
    let mut rows = 0;
    loop {
        let page = store.list_outbox(filter.clone()).await.unwrap();
        let (page, next) = (page.found, page.next);
        rows += page.len();
        if next.is_none() {
            break;
        }
        filter.before = next;
    }
    assert_eq!(rows, WAITS);
}

fn outbox_filter(announcements: bool) -> OutboxFilter {
    OutboxFilter::all(tenant(), announcements, 100)
}

pub(crate) async fn the_outbox_is_listed_by_every_filter(kit: &Kit) {
    let store = kit.fresh(routed(&["a", "b"], "r")).await;
    for n in 1..=3 {
        ask("t", &format!("q{n}")).send(&*store, at(0)).await;
    }
    ask("t", "q9").of("acme").send(&*store, at(0)).await;
    let out = lease(&*store, &announcer("a"), 2, at(0)).await;
    store.settle(vec![dead(&out[0]), dead(&out[1])], at(1)).await.unwrap();
    store.answer(answer("t", "q3", "1"), at(2)).await.unwrap();
    let list = async |announcements, change: &dyn Fn(&mut OutboxFilter)| {
        let mut filter = outbox_filter(announcements);
        change(&mut filter);
        let rows = store.list_outbox(filter).await.unwrap().found;
        assert!(rows.is_sorted_by(|x, y| x.id > y.id));
        let short = |r: &answerback::store::OutboxRow| {
            format!("{}:{}", r.destination.label(), r.question_id)
        };
        rows.iter().map(short).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(list(true, &|_| ()).await, "b:q3 a:q3 b:q2 a:q2 b:q1 a:q1");
    assert_eq!(list(false, &|_| ()).await, "r:q3");
    assert_eq!(list(true, &|f| f.state = Some(OutboxState::Dead)).await, "a:q2 a:q1");
    assert_eq!(list(true, &|f| f.state = Some(OutboxState::Queued)).await, "b:q2 b:q1");
    assert_eq!(list(true, &|f| f.state = Some(OutboxState::Withdrawn)).await, "b:q3 a:q3");
    assert_eq!(list(true, &|f| f.state = Some(OutboxState::Delivered)).await, "");
    assert_eq!(list(false, &|f| f.state = Some(OutboxState::Dead)).await, "");
    assert_eq!(list(true, &|f| f.label = Some("b".to_owned())).await, "b:q3 b:q2 b:q1");
    assert_eq!(list(true, &|f| f.label = Some("c".to_owned())).await, "");
    let q2 = wait(&*store, "t", "q2").await.id;
    assert_eq!(list(true, &|f| f.wait = Some(q2)).await, "b:q2 a:q2");
    let dead_of = |f: &mut OutboxFilter| {
        f.wait = Some(q2);
        f.state = Some(OutboxState::Dead);
    };
    assert_eq!(list(true, &dead_of).await, "a:q2");
    assert_eq!(list(true, &|f| f.before = Some(out[1].id)).await, "b:q1 a:q1");
    assert_eq!(list(true, &|f| f.limit = 1).await, "b:q3");
    let acme = |f: &mut OutboxFilter| {
        f.tenant = answerback::contract::TenantId::new("acme").unwrap();
    };
    assert_eq!(list(true, &acme).await, "");
}
