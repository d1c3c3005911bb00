//! After the storm everything must work again, and promptly: what was lost in it, a nudge, a watcher,
//! a place in a line, shows as slowness that no count of messages would tell.

use crate::load::{Ask, Front, More, answers_go, envelope, poll, tenant};
use crate::replica::{LOOK_EVERY, Running};
use answerback::clock::Clock;
use answerback::contract::{Bytes, Event, Via};
use answerback::core::{Destination, Name};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// From a commit to the other side, when nothing fails: delays, and a batch under way.
const PROMPT: Duration = Duration::from_millis(1_000);

/// The same when another replica has to notice: by a hint, or by looking.
fn noticed(front: &Front) -> Duration {
    if front.world.plan.hints || front.world.plan.alone { PROMPT } else { LOOK_EVERY + PROMPT }
}

pub(crate) async fn afterglow(front: &Arc<Front>) {
    let replicas: Vec<Running> =
        front.replicas.iter().filter_map(|replica| replica.running()).collect();
    if replicas.len() != front.replicas.len() {
        return front.world.wrong("a replica is not back".to_owned());
    }
    for n in 0..replicas.len() {
        let kind = ["r", "u", "p"][(n + front.world.plan.replicas) % 3];
        let around = [0, 1, 2].map(|k| replicas[(n + k) % replicas.len()].clone());
        let thread = format!("{kind}9-{n}");
        by_answer(front, &around, &thread).await;
        if n == 0 {
            by_default(front, &around, &thread).await;
            in_line(front, &around).await;
        }
    }
}

/// Asked here, waited for there, answered at a third.
async fn by_answer(front: &Front, [here, there, third]: &[Running; 3], thread: &str) {
    let ask = envelope(thread, "answered", 1, &More::default());
    publish(front, here, &ask).await;
    for name in ["ordered", "loose", "table"] {
        let to = Destination::Announcer(Name::new(name));
        arrives(front, &ask, Event::Created, &to, PROMPT).await;
    }
    let answering = async {
        sleep(Duration::from_millis(100)).await;
        answer(front, third, &ask).await;
        let to = answers_go(thread, &ask.question);
        if to != Destination::Pull {
            arrives(front, &ask, Event::Answered, &to, PROMPT).await;
        }
        let to = Destination::Announcer(Name::new("ordered"));
        arrives(front, &ask, Event::Answered, &to, PROMPT).await;
    };
    let host = timeout(noticed(front), poll(there, &ask, 0));
    if let (Err(_), ()) = tokio::join!(host, answering) {
        front.world.wrong(format!("a host of {thread} is not told of its answer"));
    }
}

/// Asked here, waited for there, and nobody answers.
async fn by_default(front: &Front, [here, there, _]: &[Running; 3], thread: &str) {
    let more = More {
        expires_at: Some(here.clock.now().after(Duration::from_secs(3))),
        default: Some(5),
        ..More::default()
    };
    let ask = envelope(thread, "timed-out", 1, &more);
    publish(front, here, &ask).await;
    let host = timeout(Duration::from_secs(3) + noticed(front), poll(there, &ask, 0));
    if host.await.is_err() {
        return front.world.wrong(format!("a host of {thread} is not told of its default"));
    }
    let to = answers_go(thread, &ask.question);
    if to != Destination::Pull {
        arrives(front, &ask, Event::Answered, &to, PROMPT).await;
    }
    let to = Destination::Announcer(Name::new("ordered"));
    // Whoever ended the wait may have a clock ahead of the one that has its line in hand.
    arrives(front, &ask, Event::TimedOut, &to, PROMPT + LOOK_EVERY).await;
}

/// Two answers of one thread at once, to two places: the second goes as soon as the first is there.
async fn in_line(front: &Front, [here, _, _]: &[Running; 3]) {
    let thread = format!("u9-line-{}", here.life.replica);
    let both = ["q", "q:2"].map(|question| envelope(&thread, question, 1, &More::default()));
    for ask in &both {
        publish(front, here, ask).await;
    }
    for ask in &both {
        answer(front, here, ask).await;
    }
    for ask in &both {
        let to = answers_go(&ask.thread, &ask.question);
        arrives(front, ask, Event::Answered, &to, PROMPT).await;
    }
}

async fn answer(front: &Front, at: &Running, ask: &Ask) {
    let (thread, question) = (&ask.thread, &ask.question);
    let body =
        Bytes::from(format!(r#"{{"thread_id":"{thread}","question_id":"{question}","answer":1}}"#));
    if at.intake.answer(&tenant(), None, Via::Api, &body).await.is_err() {
        front.world.wrong("an answer fails after the storm".to_owned());
    }
}

async fn publish(front: &Front, at: &Running, ask: &Ask) {
    if at.intake.publish(&tenant(), Bytes::from(ask.text.clone())).await.is_err() {
        front.world.wrong("a publish fails after the storm".to_owned());
    }
}

async fn arrives(front: &Front, ask: &Ask, event: Event, to: &Destination, within: Duration) {
    let arrived = || {
        let state = front.world.state();
        state.buses.arrivals.iter().rev().any(|a| {
            a.event == event
                && a.destination == *to
                && a.thread.as_str() == ask.thread
                && a.question.as_str() == ask.question
        })
    };
    let waiting = async {
        while !arrived() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    if timeout(within, waiting).await.is_err() {
        front.world.wrong(format!(
            "{event} of {} does not reach {} promptly",
            ask.thread,
            to.label()
        ));
    }
}
