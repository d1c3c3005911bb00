//! The contract read plainly, sections 2 and 6, without any of the crate's types: a list of waits, a
//! list of what was sent, and a rule a sentence.

/// `[waits] republished_after_answer`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Again {
    Resend,
    Ask,
    Ignore,
}

#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) tenant: &'static str,
    pub(super) thread: &'static str,
    pub(super) question_id: &'static str,
    /// Equal numbers are equal questions, however they are spelt.
    pub(super) question: u32,
    pub(super) spelt: &'static str,
    pub(super) default: Option<&'static str>,
    pub(super) ttl: Option<i64>,
    pub(super) expires_in: Option<i64>,
}

#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) tenant: &'static str,
    pub(super) thread: &'static str,
    pub(super) question_id: &'static str,
    pub(super) generation: Option<u32>,
    /// Equal numbers are equal answers.
    pub(super) value: u32,
    pub(super) spelt: &'static str,
    pub(super) valid_for: Option<i64>,
}

struct PlainWait {
    asked: Asked,
    generation: u32,
    /// The dedupe key without `wait.created:`.
    key: String,
    deadline: Option<i64>,
    /// The publish whose `reply_with` holds.
    reply: usize,
    state: &'static str,
    /// The answer's number (none for a default), its text, and until when it is usable.
    answer: Option<(Option<u32>, &'static str, Option<i64>)>,
    sent_again: u32,
    /// The answer is on its way to the host.
    on_its_way: bool,
}

/// All that happened.
pub(super) struct Reading {
    again: Again,
    waits: Vec<PlainWait>,
    /// Which wait, which key, to whom, and whether it is the answer for the host.
    sent: Vec<(usize, String, &'static str, bool)>,
}

impl Reading {
    pub(super) fn new(again: Again) -> Self {
        Self { again, waits: Vec::new(), sent: Vec::new() }
    }

    pub(super) fn publish(&mut self, asked: &Asked, n: usize, now: i64) -> String {
        let newest = self.waits.iter().rposition(|w| {
            w.asked.tenant == asked.tenant
                && w.asked.thread == asked.thread
                && w.asked.question_id == asked.question_id
        });
        // "none: new wait, announced"
        let Some(newest) = newest else { return self.open(asked, 1, n, now) };
        let same = self.waits[newest].asked.question == asked.question;
        let generation = self.waits[newest].generation + 1;
        if self.is_due(newest, now) {
            let resend = self.again == Again::Resend;
            if resend && same && self.waits[newest].asked.default.is_some() {
                // The host gets the default as it would get it again: once, where it is now.
                self.waits[newest].reply = n;
                self.time_out(newest, now);
                return "duplicate".to_owned();
            }
            self.time_out(newest, now);
        }
        match (self.waits[newest].state, same) {
            // "duplicate: not announced again; reply_to and reply_with are taken over"
            ("open", true) => {
                self.waits[newest].reply = n;
                "duplicate".to_owned()
            }
            // "the asker has moved on: the old one becomes cancelled"
            ("open", false) => {
                self.withdraw(newest);
                self.open(asked, generation, n, now)
            }
            ("completed" | "timed-out", true) if self.waits[newest].answer.is_some() => {
                let usable = self.waits[newest]
                    .answer
                    .is_some_and(|(_, _, until)| until.is_none_or(|until| now < until));
                match self.again {
                    Again::Ignore => "duplicate".to_owned(),
                    // "the stored answer goes to the host again while still valid"
                    Again::Resend if usable => {
                        let wait = &mut self.waits[newest];
                        wait.reply = n;
                        // What is on its way goes to the host still.
                        if !wait.on_its_way {
                            wait.sent_again += 1;
                            let key = format!("wait.answered:{}:r{}", wait.key, wait.sent_again);
                            self.send_to_host(newest, key);
                        }
                        "duplicate".to_owned()
                    }
                    Again::Resend | Again::Ask => self.open(asked, generation, n, now),
                }
            }
            _ => self.open(asked, generation, n, now),
        }
    }

    fn open(&mut self, asked: &Asked, generation: u32, n: usize, now: i64) -> String {
        // "when that key was already given to another wait, :<n> is appended, n counting up"
        let mut key = asked.question_id.to_owned();
        let mut count = 1;
        while self.waits.iter().any(|w| w.asked.tenant == asked.tenant && w.key == key) {
            count += 1;
            key = format!("{}:{count}", asked.question_id);
        }
        self.waits.push(PlainWait {
            asked: asked.clone(),
            generation,
            key,
            deadline: asked.expires_in.map(|ms| now + ms),
            reply: n,
            state: "open",
            answer: None,
            sent_again: 0,
            on_its_way: false,
        });
        let wait = self.waits.len() - 1;
        if self.is_due(wait, now) {
            // "nothing is announced; the default goes out at once, once"
            self.waits[wait].state = "timed-out";
            self.send_default(wait, now);
        } else {
            self.tell(wait, "wait.created");
        }
        format!("new {generation}")
    }

    pub(super) fn answer(&mut self, said: &Said, now: i64) -> String {
        // "An answer without generation is for the first"
        let generation = said.generation.unwrap_or(1);
        let wait = self.waits.iter().position(|w| {
            w.asked.tenant == said.tenant
                && w.asked.thread == said.thread
                && w.asked.question_id == said.question_id
                && w.generation == generation
        });
        let Some(wait) = wait else { return "no such wait".to_owned() };
        // "Expiry is judged at the moment of the answer"
        if self.is_due(wait, now) {
            self.time_out(wait, now);
            return "closed: timed-out".to_owned();
        }
        match (self.waits[wait].state, self.waits[wait].answer) {
            ("open", _) => {}
            ("completed", Some((Some(value), _, _))) if value == said.value => {
                return "accepted again".to_owned();
            }
            (state, _) => return format!("closed: {state}"),
        }
        if said.valid_for.is_some_and(|ms| ms <= 0) {
            return "expired".to_owned();
        }
        // "the earlier of the answer's own and answered-at + answer_ttl"
        let until = [said.valid_for, self.waits[wait].asked.ttl].into_iter().flatten().min();
        self.waits[wait].state = "completed";
        self.waits[wait].answer = Some((Some(said.value), said.spelt, until.map(|ms| now + ms)));
        self.tell(wait, "wait.answered");
        self.send_to_host(wait, format!("wait.answered:{}", self.waits[wait].key));
        "accepted".to_owned()
    }

    pub(super) fn cancel(&mut self, wait: usize, now: i64) -> String {
        if self.is_due(wait, now) {
            self.time_out(wait, now);
        }
        match self.waits[wait].state {
            "open" => self.withdraw(wait),
            state => return format!("closed: {state}"),
        }
        "cancelled".to_owned()
    }

    pub(super) fn sweep(&mut self, now: i64) -> usize {
        let due: Vec<_> = (0..self.waits.len()).filter(|wait| self.is_due(*wait, now)).collect();
        for wait in &due {
            self.time_out(*wait, now);
        }
        due.len()
    }

    fn is_due(&self, wait: usize, now: i64) -> bool {
        let wait = &self.waits[wait];
        wait.state == "open" && wait.deadline.is_some_and(|deadline| deadline <= now)
    }

    fn time_out(&mut self, wait: usize, now: i64) {
        self.waits[wait].state = "timed-out";
        self.tell(wait, "wait.timed-out");
        self.send_default(wait, now);
    }

    fn send_default(&mut self, wait: usize, now: i64) {
        // "default (any value but null) is sent as the answer"
        let Some(default) = self.waits[wait].asked.default else { return };
        let until = self.waits[wait].asked.ttl.map(|ms| now + ms);
        self.waits[wait].answer = Some((None, default, until));
        self.send_to_host(wait, format!("wait.answered:{}", self.waits[wait].key));
    }

    fn withdraw(&mut self, wait: usize) {
        self.waits[wait].state = "cancelled";
        self.tell(wait, "wait.cancelled");
    }

    fn send_to_host(&mut self, wait: usize, key: String) {
        let to = if self.waits[wait].asked.tenant == "default" { "host" } else { "pull" };
        self.waits[wait].on_its_way = true;
        self.sent.push((wait, key, to, true));
    }

    pub(super) fn arrived(&mut self, wait: usize) {
        self.waits[wait].on_its_way = false;
    }

    fn tell(&mut self, wait: usize, event: &str) {
        let told: &[&'static str] = match (self.waits[wait].asked.tenant, event) {
            ("default", "wait.created") => &["all", "plain", "row"],
            ("default", _) => &["all", "row"],
            (_, "wait.created" | "wait.answered") => &["foreign"],
            _ => &[],
        };
        let key = format!("{event}:{}", self.waits[wait].key);
        self.sent.extend(told.iter().map(|to| (wait, key.clone(), *to, false)));
    }

    pub(super) fn waits_in_words(&self) -> Vec<String> {
        let in_words = |w: &PlainWait| {
            let answer = w.answer.map(|(_, text, _)| text);
            format!("{} {} {} {} {answer:?}", w.asked.tenant, w.asked.thread, w.key, w.state)
        };
        self.waits.iter().map(in_words).collect()
    }

    pub(super) fn sent_in_words(&self) -> Vec<String> {
        let mut sent: Vec<_> = self
            .sent
            .iter()
            .map(|(wait, key, to, is_answer)| {
                let wait = &self.waits[*wait];
                let text = match wait.answer.filter(|_| *is_answer) {
                    None => String::new(),
                    Some((_, answer, until)) => {
                        let until = until.map_or(String::new(), |ms| {
                            format!(", \"valid_until\": \"{}\"", date(ms))
                        });
                        format!("{{\"n\":{},\"answer\":{answer}{until}}}", wait.reply)
                    }
                };
                format!("{} {key} > {to} {text}", wait.asked.tenant)
            })
            .collect();
        sent.sort();
        sent
    }
}

/// Days 11 and on of 1970, where the test's clock starts, written by hand.
fn date(ms: i64) -> String {
    let (day, rest) = (ms / 86_400_000, ms % 86_400_000);
    let (hour, minute, second) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1_000 % 60);
    assert!(day < 31);
    format!("1970-01-{:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", day + 1, rest % 1_000)
}
