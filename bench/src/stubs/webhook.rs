//! A webhook's receiver: the dedupe key by the header, the body held against what was published.

use super::Answer;
use crate::envelope::{Template, number_of_key};
use crate::ledger::Destination;
use crate::wire::{Request, reply};
use std::sync::Arc;

pub(super) struct Webhook {
    destination: Arc<Destination>,
    published: Template,
}

impl Webhook {
    pub(super) fn new(destination: Arc<Destination>) -> Self {
        Self { destination, published: Template::envelope() }
    }
}

impl Answer for Webhook {
    fn answer(&mut self, request: &Request<'_>, at: u32, out: &mut Vec<u8>) {
        let number = request.header("x-agent-wait-dedupe-key").and_then(number_of_key);
        self.destination.arrived(number, at);
        if number.is_some_and(|number| self.published.of(number) != request.body) {
            self.destination.altered();
        }
        reply(out, "200 OK", "text/plain", b"");
    }
}
