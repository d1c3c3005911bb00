//! What can happen to a wait.

use std::fmt;

/// Something that happened to a wait and that announcers can be told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Event {
    /// A question was asked: `wait.created`.
    Created,
    /// It was answered: `wait.answered`. Also the event under which a host gets its answer.
    Answered,
    /// Its deadline passed: `wait.timed-out`.
    TimedOut,
    /// It was withdrawn or superseded: `wait.cancelled`.
    Cancelled,
    /// It is still open: `wait.reminder`.
    Reminder,
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 5] =
        [Self::Created, Self::Answered, Self::TimedOut, Self::Cancelled, Self::Reminder];

    /// The name as it stands in messages and in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Created => "wait.created",
            Self::Answered => "wait.answered",
            Self::TimedOut => "wait.timed-out",
            Self::Cancelled => "wait.cancelled",
            Self::Reminder => "wait.reminder",
        }
    }

    /// The name without `wait.`, as SNS attributes carry it.
    #[must_use]
    pub fn transition(self) -> &'static str {
        &self.name()["wait.".len()..]
    }

    /// The event of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|e| e.name() == name)
    }

    /// Whether sending it is pointless once the wait is over.
    #[must_use]
    pub fn ends_with_the_wait(self) -> bool {
        matches!(self, Self::Created | Self::Reminder)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a wait stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WaitState {
    /// A link was handed out, the call has not paused yet.
    Pending,
    /// An answer is awaited.
    Open,
    /// Answered.
    Completed,
    /// The deadline passed first.
    TimedOut,
    /// Withdrawn by the asker, or superseded by a newer question.
    Cancelled,
    /// The call never paused on it.
    Unused,
}

impl WaitState {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Open, Self::Completed, Self::TimedOut, Self::Cancelled, Self::Unused];

    /// The name as it stands in answers of the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Open => "open",
            Self::Completed => "completed",
            Self::TimedOut => "timed-out",
            Self::Cancelled => "cancelled",
            Self::Unused => "unused",
        }
    }

    /// The state of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    /// Whether nothing can happen to the wait any more.
    #[must_use]
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Pending | Self::Open)
    }
}

impl fmt::Display for WaitState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How an answer reached the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Via {
    /// `POST /v1/answers` or the command line.
    Api,
    /// A secret link.
    Link,
    /// The page behind a link for people.
    Page,
    /// An SQS source.
    Sqs,
    /// A Kafka source.
    Kafka,
    /// An SNS topic, over HTTP.
    Sns,
    /// A pipe.
    Stdin,
    /// Nobody answered: the question's own default.
    Default,
}

impl Via {
    /// Every way.
    pub const ALL: [Self; 8] = [
        Self::Api,
        Self::Link,
        Self::Page,
        Self::Sqs,
        Self::Kafka,
        Self::Sns,
        Self::Stdin,
        Self::Default,
    ];

    /// The name as it stands in headers, attributes and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Link => "link",
            Self::Page => "page",
            Self::Sqs => "sqs",
            Self::Kafka => "kafka",
            Self::Sns => "sns",
            Self::Stdin => "stdin",
            Self::Default => "default",
        }
    }

    /// The way of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|v| v.name() == name)
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
