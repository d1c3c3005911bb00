//! Answers, deadlines, withdrawals: one wins.

use crate::kit::{
    Kit, announcer, announcing, answer, ask, at, dead, delivered, generation, lease, outbox, route,
    routed, seen, tenant, traffic, wait, waits,
};
use answerback::contract::WaitState;
use answerback::core::{AnswerOutcome, CancelOutcome, Destination, OutboxState, WaitId};
use answerback::store::{Retried, Retry};

pub(crate) async fn the_first_answer_wins_among_many(kit: &Kit) {
    let store = kit.fresh(routed(&["a"], "r")).await;
    for round in 0..5 {
        let question = format!("q{round}");
        ask("t", &question).send(&*store, at(0)).await;
        let tasks: Vec<_> = (0..60)
            .map(|n| {
                let (store, request) = (store.clone(), answer("t", &question, &n.to_string()));
                tokio::spawn(async move { store.answer(request, at(1)).await.unwrap() })
            })
            .collect();
        let mut accepted = 0;
        for task in tasks {
            match task.await.unwrap().outcome {
                AnswerOutcome::Accepted => accepted += 1,
                AnswerOutcome::Closed { state, generation } => {
                    assert_eq!(state, WaitState::Completed);
                    assert!(generation.is_first());
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(accepted, 1);
        let won = wait(&*store, "t", &question).await.answer.clone().unwrap();
        let again = answer("t", &question, &format!("{}.0", String::from_utf8_lossy(&won.value)));
        let again = store.answer(again, at(2)).await.unwrap();
        assert_eq!(again.outcome, AnswerOutcome::AcceptedAgain);
        assert!(again.queued.is_empty());
    }
    let deliveries = traffic(&*store).await.into_iter().filter(|(label, ..)| label == "r").count();
    assert_eq!(deliveries, 5);
}

pub(crate) async fn an_answer_is_for_its_generation_only(kit: &Kit) {
    let store = kit.fresh(routed(&[], "r")).await;
    ask("t", "q").question("1").send(&*store, at(0)).await;
    ask("t", "q").question("2").send(&*store, at(1)).await;
    let late = store.answer(answer("t", "q", "1"), at(2)).await.unwrap();
    let closed = AnswerOutcome::Closed { state: WaitState::Cancelled, generation: generation(1) };
    assert_eq!(late.outcome, closed);
    let mut wrong = answer("t", "q", "1");
    wrong.answer.generation = generation(3);
    let wrong = store.answer(wrong, at(2)).await.unwrap();
    assert_eq!((wrong.outcome, wrong.wait), (AnswerOutcome::NotFound, None));
    assert_eq!(wait(&*store, "t", "q").await.state, WaitState::Open);
    let mut right = answer("t", "q", "1");
    right.answer.generation = generation(2);
    let right = store.answer(right, at(2)).await.unwrap();
    assert_eq!(right.outcome, AnswerOutcome::Accepted);
    assert_eq!(right.wait, Some(wait(&*store, "t", "q").await.id));
    for (thread, question) in [("t", "p"), ("u", "q")] {
        let nobody = store.answer(answer(thread, question, "1"), at(2)).await.unwrap();
        assert_eq!(nobody.outcome, AnswerOutcome::NotFound);
    }
}

pub(crate) async fn an_answer_withdraws_the_announcement_and_queues_the_delivery(kit: &Kit) {
    let store = kit.fresh(routed(&["a", "b*"], "r")).await;
    ask("t", "q").send(&*store, at(0)).await;
    let leased = lease(&*store, &announcer("a"), 1, at(0)).await;
    store.settle(vec![delivered(&leased[0])], at(0)).await.unwrap();
    let answered = store.answer(answer("t", "q", "1"), at(1)).await.unwrap();
    assert_eq!(answered.queued, [announcer("b"), route("r")]);
    assert_eq!(
        traffic(&*store).await,
        [
            seen("a", "created", OutboxState::Delivered),
            seen("b", "created", OutboxState::Withdrawn),
            seen("b", "answered", OutboxState::Queued),
            seen("r", "answered", OutboxState::Queued),
        ]
    );
    let rows = outbox(&*store).await;
    assert_eq!((rows[0].attempts, rows[0].finished_at), (1, Some(at(0))));
    assert_eq!((rows[1].finished_at, rows[1].next_attempt_at), (Some(at(1)), None));
    assert!(rows[2].event_id.is_some() && rows[3].event_id.is_some());
    assert_ne!(rows[2].event_id, rows[3].event_id);
    assert!(lease(&*store, &announcer("a"), 9, at(1)).await.is_empty());
    assert_eq!(lease(&*store, &announcer("b"), 9, at(1)).await.len(), 1);
}

pub(crate) async fn a_late_answer_finds_the_deadline_done(kit: &Kit) {
    let store = kit.fresh(routed(&["a*"], "r")).await;
    ask("t", "q").expires(at(10)).with("default", "0").send(&*store, at(0)).await;
    let late = store.answer(answer("t", "q", "1"), at(10)).await.unwrap();
    let closed = AnswerOutcome::Closed { state: WaitState::TimedOut, generation: generation(1) };
    assert_eq!(late.outcome, closed);
    let kept = wait(&*store, "t", "q").await;
    assert_eq!(kept.state, WaitState::TimedOut);
    assert_eq!(&kept.answer.as_ref().unwrap().value[..], b"0");
    assert_eq!(
        traffic(&*store).await,
        [
            seen("a", "created", OutboxState::Withdrawn),
            seen("a", "timed-out", OutboxState::Queued),
            seen("r", "answered", OutboxState::Queued),
        ]
    );
    assert!(store.time_out(10, at(11)).await.unwrap().waits.is_empty());
}

pub(crate) async fn deadlines_end_waits_the_longest_due_first(kit: &Kit) {
    let store = kit.fresh(announcing(&["a*"])).await;
    for (question, deadline) in [("q5", 5), ("q3", 3), ("q9", 9), ("q4", 4)] {
        ask("t", question).expires(at(deadline)).send(&*store, at(0)).await;
    }
    ask("t", "never").send(&*store, at(0)).await;
    assert_eq!(store.next_deadline().await.unwrap(), Some(at(3)));
    let none = store.time_out(10, at(2)).await.unwrap();
    assert!(none.waits.is_empty() && none.queued.is_empty());
    assert_eq!(none.next, Some(at(3)));
    let two = store.time_out(2, at(6)).await.unwrap();
    let due: Vec<_> = two.waits.iter().map(|(_, due)| *due).collect();
    assert_eq!(due, [at(3), at(4)]);
    assert_eq!(two.queued, [announcer("a")]);
    assert_eq!(two.next, Some(at(5)));
    let rest = store.time_out(10, at(6)).await.unwrap();
    assert_eq!((rest.waits.len(), rest.next), (1, Some(at(9))));
    let last = store.time_out(10, at(9)).await.unwrap();
    assert_eq!((last.waits.len(), last.next), (1, None));
    let over = |w: &(String, u32, WaitState)| w.2 == WaitState::TimedOut;
    assert_eq!(waits(&*store).await.iter().filter(|w| over(w)).count(), 4);
}

pub(crate) async fn answer_and_deadline_have_one_winner(kit: &Kit) {
    let store = kit.fresh(routed(&[], "r")).await;
    let questions: Vec<String> = (0..40).map(|n| format!("q{n}")).collect();
    for question in &questions {
        let asked = ask("t", question).expires(at(10)).with("default", "\"no\"");
        asked.send(&*store, at(0)).await;
    }
    let sweeping = store.clone();
    let sweep = tokio::spawn(async move {
        let mut ended = 0;
        for _ in 0..40 {
            ended += sweeping.time_out(1, at(10)).await.unwrap().waits.len();
        }
        ended
    });
    let mut accepted = 0;
    for question in &questions {
        // Before its deadline by the clock of whoever answers.
        let answered = store.answer(answer("t", question, "\"yes\""), at(9)).await.unwrap();
        accepted += usize::from(answered.outcome == AnswerOutcome::Accepted);
    }
    let ended = sweep.await.unwrap() + store.time_out(100, at(10)).await.unwrap().waits.len();
    assert_eq!(accepted + ended, questions.len());
    assert_eq!(traffic(&*store).await.len(), questions.len());
    for question in &questions {
        let kept = wait(&*store, "t", question).await;
        let value = kept.answer.clone().unwrap().value;
        let wanted: &[u8] = if kept.state == WaitState::Completed { b"\"yes\"" } else { b"\"no\"" };
        assert_eq!(&value[..], wanted);
    }
}

pub(crate) async fn a_wait_is_cancelled_once(kit: &Kit) {
    let store = kit.fresh(announcing(&["a*"])).await;
    ask("t", "q").send(&*store, at(0)).await;
    let id = wait(&*store, "t", "q").await.id;
    let first = store.cancel(id, at(1)).await.unwrap().unwrap();
    assert_eq!((first.outcome, first.queued), (CancelOutcome::Cancelled, vec![announcer("a")]));
    let again = store.cancel(id, at(2)).await.unwrap().unwrap();
    assert_eq!(
        (again.outcome, again.queued),
        (CancelOutcome::Closed(WaitState::Cancelled), Vec::new())
    );
    assert_eq!(wait(&*store, "t", "q").await.closed_at, Some(at(1)));
    ask("t", "p").send(&*store, at(0)).await;
    store.answer(answer("t", "p", "1"), at(1)).await.unwrap();
    let id = wait(&*store, "t", "p").await.id;
    let closed = store.cancel(id, at(2)).await.unwrap().unwrap();
    assert_eq!(closed.outcome, CancelOutcome::Closed(WaitState::Completed));
    assert!(store.cancel(WaitId(9_999), at(2)).await.unwrap().is_none());
}

pub(crate) async fn a_pull_delivery_is_over_once_fetched(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    ask("t", "q").send(&*store, at(0)).await;
    let id = wait(&*store, "t", "q").await.id;
    assert!(!store.pulled(id, at(0)).await.unwrap());
    let answered = store.answer(answer("t", "q", "1"), at(1)).await.unwrap();
    assert_eq!(answered.queued, [Destination::Pull]);
    assert!(store.pulled(id, at(2)).await.unwrap());
    assert!(store.pulled(id, at(3)).await.unwrap());
    let rows = outbox(&*store).await;
    assert_eq!((rows[0].state, rows[0].finished_at), (OutboxState::Delivered, Some(at(2))));
    assert!(!store.pulled(WaitId(9_999), at(3)).await.unwrap());
    assert!(store.destinations().await.unwrap().is_empty());
}

pub(crate) async fn an_answer_that_no_host_came_for_dies_when_it_expires(kit: &Kit) {
    let store = kit.fresh(announcing(&[])).await;
    for (question, ttl) in [("q1", "\"PT10S\""), ("q2", "\"PT20S\""), ("q3", "null")] {
        ask("t", question).with("answer_ttl", ttl).send(&*store, at(0)).await;
    }
    ask("t", "d")
        .with("answer_ttl", "\"PT30S\"")
        .with("default", "1")
        .expires(at(2))
        .send(&*store, at(0))
        .await;
    let lapses =
        async |question| store.answer(answer("t", question, "1"), at(1)).await.unwrap().lapses_at;
    assert_eq!(lapses("q1").await, Some(at(11)));
    assert_eq!(lapses("q2").await, Some(at(21)));
    assert_eq!(lapses("q3").await, None);
    let done = store.time_out(9, at(2)).await.unwrap();
    assert_eq!((done.waits.len(), done.lapsed, done.next), (1, 0, Some(at(11))));
    assert_eq!(store.time_out(9, at(10)).await.unwrap().lapsed, 0);
    let done = store.time_out(9, at(11)).await.unwrap();
    assert_eq!((done.waits.len(), done.lapsed, done.next), (0, 1, Some(at(21))));
    let rows = outbox(&*store).await;
    let row = rows.iter().find(|row| row.question_id.as_str() == "q1").unwrap();
    assert_eq!((row.state, row.reason.as_deref()), (OutboxState::Dead, Some("answer-expired")));
    assert_eq!(row.finished_at, Some(at(11)));
    assert!(rows.iter().all(|row| row.next_attempt_at.is_none()), "nothing is attempted");
    // The host that came in time has it; a limit leaves the rest for the next sweep.
    let q2 = wait(&*store, "t", "q2").await.id;
    assert!(store.pulled(q2, at(12)).await.unwrap());
    let done = store.time_out(9, at(999)).await.unwrap();
    assert_eq!((done.lapsed, done.next), (1, None));
    let depths = store.depths().await.unwrap();
    assert_eq!(depths.iter().map(|d| d.queued).sum::<u64>(), 1, "q3 waits for ever");
    // Asked again while the answer is usable: then that lapses too.
    ask("t", "q4").with("answer_ttl", "\"PT10S\"").send(&*store, at(0)).await;
    store.answer(answer("t", "q4", "1"), at(1)).await.unwrap();
    let q4 = wait(&*store, "t", "q4").await.id;
    store.pulled(q4, at(2)).await.unwrap();
    let again = ask("t", "q4").with("answer_ttl", "\"PT10S\"").send(&*store, at(3)).await;
    assert_eq!(again.lapses_at, Some(at(11)));
    assert_eq!(store.time_out(9, at(11)).await.unwrap().lapsed, 1);
}

pub(crate) async fn a_delivery_of_an_expired_answer_is_not_sent_again(kit: &Kit) {
    let store = kit.fresh(routed(&[], "r")).await;
    ask("t", "q").with("answer_ttl", "\"PT10S\"").send(&*store, at(0)).await;
    store.answer(answer("t", "q", "1"), at(0)).await.unwrap();
    for (now, retried) in
        [(9, Retried::Queued(1, vec![route("r")])), (10, Retried::NotRetryable(OutboxState::Dead))]
    {
        let out = lease(&*store, &route("r"), 1, at(9)).await;
        let id = outbox(&*store).await[0].id;
        store.settle(vec![dead(&out[0])], at(9)).await.unwrap();
        let told = store.retry(tenant(), Retry::Delivery(id), at(now)).await.unwrap();
        assert_eq!(told, retried, "at {now}");
    }
    // A pull delivery dies by nothing else, so it is never sent again.
    let store = kit.fresh(announcing(&[])).await;
    ask("t", "q").with("answer_ttl", "\"PT10S\"").send(&*store, at(0)).await;
    store.answer(answer("t", "q", "1"), at(0)).await.unwrap();
    store.time_out(9, at(10)).await.unwrap();
    let id = outbox(&*store).await[0].id;
    let told = store.retry(tenant(), Retry::Delivery(id), at(10)).await.unwrap();
    assert_eq!(told, Retried::NotRetryable(OutboxState::Dead));
}
