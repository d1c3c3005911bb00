//! SNS, in AWS's query protocol: a form comes in, XML goes out.

use super::Answer;
use crate::envelope::first_number;
use crate::ledger::Destination;
use crate::wire::{Request, reply};
use std::fmt::Write;
use std::sync::Arc;

pub(super) struct Sns(pub(super) Arc<Destination>);

const NAMESPACE: &str = "http://sns.amazonaws.com/doc/2010-03-31/";
const MESSAGE: &str = "<MessageId>00000000-0000-0000-0000-000000000000</MessageId>";

impl Answer for Sns {
    fn answer(&mut self, request: &Request<'_>, at: u32, out: &mut Vec<u8>) {
        let form = std::str::from_utf8(request.body).unwrap_or_default();
        let fields = || form.split('&').filter_map(|field| field.split_once('='));
        let action = fields().find(|(key, _)| *key == "Action").map_or("", |(_, value)| value);
        let mut result = String::new();
        match action {
            "PublishBatch" => {
                result.push_str("<Failed/><Successful>");
                for (key, value) in fields() {
                    let Some(of) = key.strip_prefix("PublishBatchRequestEntries.member.") else {
                        continue;
                    };
                    // `3.Id` and `3.Message`, but not `3.MessageAttributes.entry.1.Name`. The text is
                    // percent-encoded; its id has nothing that would be.
                    match of.trim_start_matches(|c: char| c.is_ascii_digit()) {
                        ".Id" => {
                            let _ = write!(result, "<member><Id>{value}</Id>{MESSAGE}</member>");
                        }
                        ".Message" => self.0.arrived(first_number(value.as_bytes()), at),
                        _ => {}
                    }
                }
                result.push_str("</Successful>");
            }
            "Publish" => {
                self.0.arrived(first_number(request.body), at);
                result.push_str(MESSAGE);
            }
            "GetTopicAttributes" => result.push_str("<Attributes/>"),
            _ => {
                let body = format!(
                    r#"<ErrorResponse xmlns="{NAMESPACE}"><Error><Type>Sender</Type><Code>InvalidAction</Code><Message>not here</Message></Error></ErrorResponse>"#
                );
                return reply(out, "400 Bad Request", "text/xml", body.as_bytes());
            }
        }
        let body = format!(
            r#"<{action}Response xmlns="{NAMESPACE}"><{action}Result>{result}</{action}Result><ResponseMetadata><RequestId>00000000-0000-0000-0000-000000000000</RequestId></ResponseMetadata></{action}Response>"#
        );
        reply(out, "200 OK", "text/xml", body.as_bytes());
    }
}
