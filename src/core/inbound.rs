//! What came in, by one look, the same from every source (contract, section 2).

use crate::answer::Answer;
use crate::envelope::Envelope;
use crate::field::{Refusal, check_size, id_text};
use answerback_contract::json::{self, JsonError};
use answerback_contract::{Bytes, ThreadId};
use std::fmt;

/// A message of a source that carries all kinds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inbound {
    /// A question.
    Envelope(Box<Envelope>),
    /// An answer to one.
    Answer(Box<Answer>),
    /// Work for the host.
    Start(Start),
}

impl Inbound {
    /// Tells the kinds apart: `type` = `wait.created` is an envelope; else with `question_id` it is
    /// an answer; else with `thread_id` and `input` a start message.
    ///
    /// # Errors
    /// [`Refusal`] names the field that is wrong, or says that it is none of the three.
    pub fn parse(bytes: &Bytes) -> Result<Self, Refusal> {
        check_size("message", bytes)?;
        let members = json::members(JsonError::check_utf8(bytes)?)?;
        let has = |key: &str| members.iter().any(|m| m.key == key);
        let asks = members
            .iter()
            .filter(|m| m.key == "type")
            .any(|m| json::parse(m.raw).is_ok_and(|value| value.as_str() == Some("wait.created")));
        if asks {
            Envelope::parse(bytes.clone()).map(|e| Self::Envelope(Box::new(e)))
        } else if has("question_id") {
            Answer::parse(bytes).map(|a| Self::Answer(Box::new(a)))
        } else if has("thread_id") && has("input") {
            Start::parse(bytes).map(Self::Start)
        } else {
            Err(Refusal::new(
                "",
                "the message is no envelope (`type` \"wait.created\"), no answer (`question_id`) \
                 and no start message (`thread_id` and `input`)",
            ))
        }
    }
}

/// A start message: forwarded as it came.
#[derive(Clone, PartialEq, Eq)]
pub struct Start {
    /// Which conversation, and so which run.
    pub thread_id: ThreadId,
    /// The whole text, exact.
    pub text: Bytes,
}

impl Start {
    /// Reads and checks a start message: `thread_id` and `input`, whatever else it holds.
    ///
    /// # Errors
    /// [`Refusal`] names the field and says what would be right.
    pub fn parse(bytes: &Bytes) -> Result<Self, Refusal> {
        check_size("start message", bytes)?;
        let members = json::members(JsonError::check_utf8(bytes)?)?;
        // Of a double key the last counts, as for most readers: the host reads the text itself.
        let raw = |key: &str| {
            let found = members.iter().rev().find(|m| m.key == key).map(|m| m.raw);
            found.ok_or_else(|| Refusal::new(key, "is missing"))
        };
        raw("input")?;
        let id = json::parse(raw("thread_id")?)?;
        let wrong = || format!("is {}, but must be a string or an integer", id.type_name());
        let text = id_text(&id).ok_or_else(|| Refusal::new("thread_id", wrong()))?;
        let thread_id =
            ThreadId::new(text).map_err(|bad| Refusal::new("thread_id", bad.to_string()))?;
        Ok(Self { thread_id, text: bytes.clone() })
    }
}

impl fmt::Debug for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Start")
            .field("thread_id", &self.thread_id)
            .field("bytes", &self.text.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> String {
        match Inbound::parse(&Bytes::copy_from_slice(text.as_bytes())) {
            Ok(Inbound::Envelope(_)) => "envelope".to_owned(),
            Ok(Inbound::Answer(_)) => "answer".to_owned(),
            Ok(Inbound::Start(start)) => {
                assert_eq!(start.text, text.as_bytes());
                format!("start {}", start.thread_id)
            }
            Err(refusal) => format!("refused at {:?}", refusal.field),
        }
    }

    #[test]
    fn one_look_tells_the_kinds_apart() {
        for (text, expected) in [
            (
                r#"{"type":"wait.created","thread_id":"t","question_id":"q","question":null}"#,
                "envelope",
            ),
            // The type decides, also against the other fields.
            (
                r#"{"type":"wait.created","thread_id":"t","question_id":"q","answer":1,"question":0}"#,
                "envelope",
            ),
            (r#"{"type":"wait.created","thread_id":"t","input":1}"#, r#"refused at "question_id""#),
            (r#"{"\u0074ype":"wait.cre\u0061ted","thread_id":"t"}"#, r#"refused at "question_id""#),
            (r#"{"type":"wait.created","type":"x","thread_id":"t"}"#, r#"refused at "type""#),
            (r#"{"type":"wait.answered","thread_id":"t","question_id":"q","answer":1}"#, "answer"),
            (r#"{"thread_id":"t","question_id":"q","answer":null}"#, "answer"),
            (r#"{"thread_id":"t","question_id":"q","input":1}"#, r#"refused at "answer""#),
            (r#"{"thread_id":"t","question_id":null,"input":1}"#, r#"refused at "question_id""#),
            (r#"{"thread_id":"t","input":null}"#, "start t"),
            (r#"{"thread_id":7,"input":{},"x":1,"x":2}"#, "start 7"),
            (r#"{"type":5,"thread_id":"t","input":[]}"#, "start t"),
            (r#"{"thread_id":"","input":[]}"#, r#"refused at "thread_id""#),
            (r#"{"thread_id":1.5,"input":[]}"#, r#"refused at "thread_id""#),
            (r#"{"thread_id":"t"}"#, r#"refused at """#),
            (r#"{"input":1}"#, r#"refused at """#),
            ("{}", r#"refused at """#),
            ("[]", r#"refused at """#),
            ("", r#"refused at """#),
            (r#"{"thread_id":"t","input":NaN}"#, r#"refused at """#),
        ] {
            assert_eq!(kind(text), expected, "{text}");
        }
        let large = format!(r#"{{"thread_id":"t","input":"{}"}}"#, "x".repeat(1 << 20));
        assert_eq!(kind(&large), r#"refused at """#);
    }
}
