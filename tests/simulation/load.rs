//! Clients: agents that ask, people who answer, hosts that wait, operators.

use crate::buses::ANNOUNCERS;
use crate::clock::EPOCH;
use crate::random::Random;
use crate::replica::{Replica, Running};
use crate::world::World;
use answerback::clock::Clock;
use answerback::contract::{
    Bytes, DedupeKey, Generation, QuestionId, TenantId, ThreadId, Time, Via,
};
use answerback::core::{AnswerOutcome, CancelOutcome, Destination, Name, OutboxState, Wait};
use answerback::intake::IntakeError;
use answerback::store::{Found, OutboxFilter, Retry, StoreResult, WaitQuery};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// What clients were told, for the oracle.
pub(crate) enum Told {
    Accepted {
        thread: String,
        question: String,
        generation: Generation,
        key: DedupeKey,
    },
    Answered {
        thread: String,
        question: String,
        generation: u64,
        value: u64,
        outcome: AnswerOutcome,
    },
    Cancelled {
        wait: answerback::core::WaitId,
        outcome: CancelOutcome,
    },
}

/// The replicas as clients see them, and what they told.
pub(crate) struct Front {
    pub(crate) world: Arc<World>,
    pub(crate) replicas: Vec<Arc<Replica>>,
    pub(crate) told: Mutex<Vec<Told>>,
}

/// One question of a script.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) thread: String,
    pub(crate) question: String,
    pub(crate) text: String,
}

pub(crate) fn tenant() -> TenantId {
    TenantId::default_tenant()
}

impl Front {
    /// Some replica that takes requests.
    async fn some(&self, random: &mut Random) -> Running {
        loop {
            let replica = random.pick(&self.replicas);
            if let Some(running) = replica.running() {
                return running;
            }
            sleep(Duration::from_millis(random.between(50, 500))).await;
        }
    }

    /// Asks some replica, until one replies. A replica may be killed meanwhile, and a client has
    /// only so much patience: then nobody knows whether it was done.
    async fn ask<T, E>(
        &self,
        random: &mut Random,
        request: impl AsyncFn(Running) -> Result<T, E>,
    ) -> T {
        loop {
            let running = self.some(random).await;
            let life = Arc::clone(&running.life);
            tokio::select! {
                biased;
                () = life.over() => {}
                done = timeout(Duration::from_secs(20), request(running)) => {
                    if let Ok(Ok(done)) = done {
                        return done;
                    }
                }
            }
            sleep(Duration::from_millis(random.between(10, 1_000))).await;
        }
    }

    pub(crate) async fn publish(&self, random: &mut Random, ask: &Ask) {
        let body = Bytes::from(ask.text.clone());
        let accepted = self
            .ask(random, async |at: Running| {
                let done = at.intake.publish(&tenant(), body.clone()).await;
                if let Err(IntakeError::Refused(refusal)) = &done {
                    panic!("{refusal}: {}", ask.text);
                }
                done
            })
            .await;
        self.told.lock().unwrap().push(Told::Accepted {
            thread: ask.thread.clone(),
            question: ask.question.clone(),
            generation: accepted.generation,
            key: accepted.dedupe_key,
        });
    }

    pub(crate) async fn answer(&self, random: &mut Random, ask: &Ask, generation: u64, value: u64) {
        let (thread, question) = (&ask.thread, &ask.question);
        let body = Bytes::from(format!(
            r#"{{"thread_id":"{thread}","question_id":"{question}","generation":{generation},"answer":{value}}}"#
        ));
        let outcome = self
            .ask(random, async |at: Running| {
                at.intake.answer(&tenant(), None, Via::Api, &body).await
            })
            .await;
        self.told.lock().unwrap().push(Told::Answered {
            thread: thread.clone(),
            question: question.clone(),
            generation,
            value,
            outcome,
        });
    }

    pub(crate) async fn cancel(&self, random: &mut Random, ask: &Ask) {
        let done = self
            .ask(random, async |at: Running| {
                let Some(wait) = find(&at, ask).await? else { return Ok(None) };
                let outcome = at.intake.cancel(wait.id).await?;
                StoreResult::Ok(outcome.map(|outcome| (wait.id, outcome)))
            })
            .await;
        if let Some((wait, outcome)) = done {
            self.told.lock().unwrap().push(Told::Cancelled { wait, outcome });
        }
    }

    /// A host that waits for the end of a wait, and comes for what is kept for it. `patience` is
    /// that of one request; a host asks again and again. `order` differs from host to host.
    pub(crate) async fn host(
        &self,
        random: &mut Random,
        ask: &Ask,
        patience: Duration,
        order: u64,
    ) {
        self.ask(random, async |at: Running| {
            let waiting = async {
                let wait = poll(&at, ask, order).await?;
                at.store.pulled(wait.id, at.clock.now()).await?;
                StoreResult::Ok(())
            };
            match timeout(patience, waiting).await {
                Ok(done) => done.map_err(|_| ()),
                Err(_) => Err(()),
            }
        })
        .await;
    }

    /// An operator who has dead messages sent again.
    pub(crate) async fn operate(&self, random: &mut Random) {
        if random.chance(500) {
            let (name, _) = random.pick(&ANNOUNCERS);
            return self.wake(random, name).await;
        }
        let pick = random.next();
        self.ask(random, async |at: Running| {
            let filter = OutboxFilter {
                tenant: tenant(),
                announcements: pick.is_multiple_of(2),
                state: Some(OutboxState::Dead),
                label: None,
                wait: None,
                before: None,
                limit: 100,
            };
            let dead = at.store.list_outbox(filter).await?.found;
            if !dead.is_empty() {
                let row = &dead[usize::try_from(pick / 2).unwrap_or(0) % dead.len()];
                let what = if row.destination.is_announcer() {
                    Retry::Announcement(row.id)
                } else {
                    Retry::Delivery(row.id)
                };
                at.intake.retry(tenant(), what).await?;
            }
            StoreResult::Ok(())
        })
        .await;
    }

    /// Has everything dead of an announcer sent again, which wakes it.
    pub(crate) async fn wake(&self, random: &mut Random, announcer: &str) {
        self.ask(random, async |at: Running| {
            at.intake.retry(tenant(), Retry::Announcer(Name::new(announcer))).await
        })
        .await;
    }
}

/// The newest wait of a question.
async fn find(at: &Running, ask: &Ask) -> StoreResult<Option<Arc<Wait>>> {
    let query = WaitQuery {
        tenant: tenant(),
        question_id: QuestionId::new(&ask.question).unwrap(),
        thread_id: Some(ThreadId::new(&ask.thread).unwrap()),
        generation: None,
    };
    Ok(match at.store.find(query).await? {
        Found::One(wait) => Some(wait),
        Found::None | Found::Ambiguous(_) => None,
    })
}

/// What `GET /v1/waits/{id}/answer?wait=` does.
pub(crate) async fn poll(at: &Running, ask: &Ask, order: u64) -> StoreResult<Arc<Wait>> {
    loop {
        let Some(wait) = find(at, ask).await? else {
            // A client that is told "not found" asks again later.
            sleep(Duration::from_secs(3)).await;
            continue;
        };
        let mut watch = at.intake.watchers().watch(wait.id);
        let Some(looked) = find(at, ask).await? else { continue };
        if looked.id != wait.id {
            continue;
        }
        if looked.state.is_over() {
            return Ok(looked);
        }
        watch.ended().await;
        // Tokio wakes those who watch the same in no set order; from here on there is one.
        sleep(Duration::from_millis(1 + order)).await;
    }
}

/// An instant of the simulation as clients write it.
pub(crate) fn instant(world: &World, in_millis: i64) -> Time {
    let now = i64::try_from(world.began.elapsed().as_millis()).unwrap();
    Time::from_millis(EPOCH + now + in_millis)
}

/// What an envelope may have beside the question.
#[derive(Default)]
pub(crate) struct More {
    pub(crate) event_id: Option<String>,
    pub(crate) expires_at: Option<Time>,
    pub(crate) default: Option<u64>,
    pub(crate) answer_ttl: Option<u64>,
}

pub(crate) fn envelope(thread: &str, question: &str, value: u64, more: &More) -> Ask {
    use std::fmt::Write as _;
    let mut text = format!(
        r#"{{"type":"wait.created","thread_id":"{thread}","question_id":"{question}","question":{value}"#
    );
    if let Some(id) = &more.event_id {
        write!(text, r#","event_id":"{id}""#).unwrap();
    }
    if let Some(at) = more.expires_at {
        write!(text, r#","expires_at":"{at}""#).unwrap();
    }
    if let Some(default) = more.default {
        write!(text, r#","default":{default}"#).unwrap();
    }
    if let Some(seconds) = more.answer_ttl {
        write!(text, r#","answer_ttl":{seconds}"#).unwrap();
    }
    if !thread.starts_with(['r', 'p']) {
        let host = host_of(question);
        write!(text, r#","reply_to":{{"kind":"http","url":"{host}/{thread}"}}"#).unwrap();
    }
    text.push('}');
    Ask { thread: thread.to_owned(), question: question.to_owned(), text }
}

/// One thread's answers may go to several places, and one after the other all the same.
fn host_of(question: &str) -> &'static str {
    if question == "q:2" { "http://two.example" } else { "http://one.example" }
}

/// Where an answer goes.
pub(crate) fn answers_go(thread: &str, question: &str) -> Destination {
    match thread.as_bytes()[0] {
        b'r' => Destination::Route(Name::new(crate::buses::ROUTE)),
        b'p' => Destination::Pull,
        _ => Destination::ReplyTo(Name::new(host_of(question))),
    }
}
