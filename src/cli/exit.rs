//! How commands end: the exit codes, and what is said on the way out (contract, section 8).

use super::client::ApiError;
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// What the shell is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// Done.
    Done = 0,
    /// Something went wrong.
    Error = 1,
    /// The command line is wrong; clap ends with the same.
    Usage = 2,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments do not make sense together.
    Usage(String),
    /// The daemon refused, or could not.
    Api(Box<ApiError>),
    /// Anything else, with its causes.
    Other(anyhow::Error),
    /// What went wrong was told already, where it happened.
    Told,
    /// Whoever reads the output has gone, as `head` does: no error.
    ReaderGone,
}

impl Failure {
    /// One sentence, and what would mend it.
    pub(crate) fn other(what: impl Into<String>) -> Self {
        Self::Other(anyhow::Error::msg(what.into()))
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Api(_) | Self::Other(_) | Self::Told => Exit::Error,
            Self::ReaderGone => Exit::Done,
        }
    }

    /// What is said on standard error; `None` for nothing.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Self::Usage(what) => Some(format!("error: {what}")),
            Self::Api(error) => Some(error.to_string()),
            Self::Other(error) => Some(format!("error: {}", chain(error.as_ref()))),
            Self::Told | Self::ReaderGone => None,
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

impl From<io::Error> for Failure {
    /// Errors of writing to standard output.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ReaderGone,
            _ => Self::Other(anyhow::Error::new(error).context("the output cannot be written")),
        }
    }
}

/// An error and its causes, but for those that the text before has already.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Ends a command.
pub(crate) fn end(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => Exit::Done.into(),
        Err(failure) => {
            if let Some(message) = failure.message() {
                super::output::complain(&message);
            }
            failure.exit().into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_was_told_is_not_told_twice() {
        let error = anyhow::anyhow!("no space").context("no space left").context("cannot write");
        assert_eq!(chain(error.as_ref()), "cannot write: no space left");
    }
}
