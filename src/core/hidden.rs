//! How what holds questions and answers shows itself: by its size. Whatever ends up in a log line or
//! an error by way of `{:?}` must hold neither (contract, section 0, promise 6).

use crate::answer::Answer;
use crate::envelope::Envelope;
use crate::model::{GivenAnswer, NewWait, Op, Wait};
use std::fmt::{self, Debug, Formatter};

/// A text of which only the size shows.
struct Hidden<'a>(&'a [u8]);

impl Debug for Hidden<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes)", self.0.len())
    }
}

impl Debug for Envelope {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope")
            .field("thread_id", self.thread_id())
            .field("question_id", self.question_id())
            .field("event_id", &self.event_id())
            .field("expires_at", &self.expires_at())
            .field("answer_ttl", &self.answer_ttl())
            .field("text", &Hidden(self.text()))
            .finish()
    }
}

impl Debug for Answer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("thread_id", &self.thread_id)
            .field("question_id", &self.question_id)
            .field("generation", &self.generation)
            .field("value", &Hidden(&self.value))
            .field("valid_until", &self.valid_until)
            .field("answered_by", &self.answered_by)
            .finish()
    }
}

impl Debug for GivenAnswer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("GivenAnswer")
            .field("value", &Hidden(&self.value))
            .field("valid_until", &self.valid_until)
            .field("answered_at", &self.answered_at)
            .field("answered_by", &self.answered_by)
            .field("answered_via", &self.answered_via)
            .finish()
    }
}

impl Debug for Wait {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("id", &self.id)
            .field("tenant", &self.tenant)
            .field("thread_id", &self.thread_id)
            .field("question_id", &self.question_id)
            .field("generation", &self.generation)
            .field("rest", &self.rest)
            .field("run_id", &self.run_id)
            .field("state", &self.state)
            .field("envelope", &Hidden(&self.envelope))
            .field("taken_over", &self.taken_over.as_ref().map(|text| Hidden(text)))
            .field("event_id", &self.event_id)
            .field("created_at", &self.created_at)
            .field("expires_at", &self.expires_at)
            .field("closed_at", &self.closed_at)
            .field("answer", &self.answer)
            .field("resends", &self.resends)
            .field("note", &self.note)
            .finish()
    }
}

impl Debug for NewWait {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewWait")
            .field("tenant", &self.tenant)
            .field("thread_id", &self.thread_id)
            .field("question_id", &self.question_id)
            .field("generation", &self.generation)
            .field("run_id", &self.run_id)
            .field("state", &self.state)
            .field("envelope", &Hidden(&self.envelope))
            .field("event_id", &self.event_id)
            .field("created_at", &self.created_at)
            .field("expires_at", &self.expires_at)
            .field("closed_at", &self.closed_at)
            .field("answer", &self.answer)
            .field("note", &self.note)
            .finish()
    }
}

impl Debug for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(wait) => f.debug_tuple("Open").field(wait).finish(),
            Self::Close { wait, state, at, answer, note } => f
                .debug_struct("Close")
                .field("wait", wait)
                .field("state", state)
                .field("at", at)
                .field("answer", answer)
                .field("note", note)
                .finish(),
            Self::TakeOver { wait, envelope } => f
                .debug_struct("TakeOver")
                .field("wait", wait)
                .field("envelope", &Hidden(envelope))
                .finish(),
            Self::Remember { wait, event_id } => {
                f.debug_struct("Remember").field("wait", wait).field("event_id", event_id).finish()
            }
            Self::Resent { wait, resends } => {
                f.debug_struct("Resent").field("wait", wait).field("resends", resends).finish()
            }
            Self::Record { wait, event, event_id, at } => f
                .debug_struct("Record")
                .field("wait", wait)
                .field("event", event)
                .field("event_id", event_id)
                .field("at", at)
                .finish(),
            Self::Send { wait, send } => {
                f.debug_struct("Send").field("wait", wait).field("send", send).finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Interpreter, envelope, publish};
    use crate::{Answer, Rules};
    use answerback_contract::{Bytes, Time};

    #[test]
    fn no_question_and_no_answer_shows() {
        let now = Time::from_millis(0);
        let asked = envelope(
            r#""question":"SECRET","default":"SECRET","expires_at":"1969-01-01T00:00:00Z""#,
        );
        let mut store = Interpreter::new(Rules::default());
        let ops = crate::publish::decide(
            None,
            false,
            &[],
            &publish(asked.clone()),
            store.rules(),
            now,
            &mut || answerback_contract::EventId::new("e").unwrap(),
        );
        store.publish(&publish(asked.clone()), now).unwrap();
        let text = br#"{"thread_id":"t","question_id":"q","answer":"SECRET"}"#;
        let answer = Answer::parse(&Bytes::from_static(text)).unwrap();
        let shown = format!("{asked:?} {ops:?} {:?} {answer:?}", store.waits());
        assert!(shown.contains("bytes"), "{shown}");
        assert!(!shown.contains("SECRET"), "{shown}");
    }
}
