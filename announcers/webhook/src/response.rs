//! What a receiver's reply means (contract, sections 4 and 6).

use answerback_contract::{Outcome, Purpose, Rejection, Time};
use reqwest::StatusCode;
use std::time::{Duration, UNIX_EPOCH};

/// The longest delay that a receiver is heard out on; the daemon caps further.
const LONGEST_DELAY_SECONDS: u64 = 366 * 86_400;

/// Turns a status and the `Retry-After` beside it into an outcome.
///
/// Redirects are never followed: the signature and the private-address guard are for the
/// configured URL only, so a 3xx is a failed attempt like any other.
pub(crate) fn classify(
    purpose: Purpose,
    status: StatusCode,
    retry_after: Option<&[u8]>,
    now: Time,
) -> Outcome {
    let code = status.as_u16();
    let retry = |reason| Outcome::Retry {
        reason,
        after: retry_after.and_then(|value| parse_retry_after(value, now)),
    };
    match (code, purpose) {
        (200..=299, _) => Outcome::Delivered,
        (300..=399, _) => retry(format!("{}, a redirect, which is never followed", show(status))),
        (408 | 425 | 429 | 500.., _) => retry(show(status)),
        (404, Purpose::Answer) => retry(show(status)),
        (409 | 410, Purpose::Answer) => {
            Outcome::Rejected { rejection: Rejection::HostClosed, reason: show(status) }
        }
        (410, Purpose::Announce) => {
            Outcome::Rejected { rejection: Rejection::Gone, reason: show(status) }
        }
        (400..=499, _) => Outcome::refused(show(status)),
        _ => retry(format!("{}, which ends no request", show(status))),
    }
}

/// The code with its registered name; a reason phrase of the receiver's own is content.
fn show(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(name) => format!("HTTP {} {name}", status.as_u16()),
        None => format!("HTTP {}", status.as_u16()),
    }
}

/// Reads `Retry-After` (RFC 9110, section 10.2.3): seconds, or an HTTP date in any of its three
/// forms. A date that is past asks for nothing.
fn parse_retry_after(value: &[u8], now: Time) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?.trim_ascii();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let seconds = text.parse().unwrap_or(u64::MAX).min(LONGEST_DELAY_SECONDS);
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    let since_1970 = at.duration_since(UNIX_EPOCH).ok()?;
    let at = Time::from_millis(i64::try_from(since_1970.as_millis()).ok()?);
    let delay = now.until(at).min(Duration::from_secs(LONGEST_DELAY_SECONDS));
    (!delay.is_zero()).then_some(delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 784_111_777_000; // Sun, 06 Nov 1994 08:49:37 GMT

    fn kind(purpose: Purpose, code: u16) -> &'static str {
        let status = StatusCode::from_u16(code).unwrap();
        match classify(purpose, status, None, Time::from_millis(NOW)) {
            Outcome::Delivered => "delivered",
            Outcome::Retry { .. } => "retry",
            Outcome::Rejected { rejection, .. } => rejection.code(),
        }
    }

    #[test]
    fn an_approver_s_reply_is_read_by_section_4() {
        for (codes, wanted) in [
            (&[200, 201, 202, 204, 299][..], "delivered"),
            (&[301, 302, 303, 304, 307, 308, 399], "retry"),
            (&[408, 425, 429, 500, 501, 502, 503, 504, 599, 600, 999], "retry"),
            (&[100, 101, 199], "retry"),
            (&[410], "gone"),
            (&[400, 401, 403, 404, 405, 409, 413, 415, 422, 451, 499], "refused"),
        ] {
            for code in codes {
                assert_eq!(kind(Purpose::Announce, *code), wanted, "{code}");
            }
        }
    }

    #[test]
    fn a_host_s_reply_is_read_by_section_6() {
        for (codes, wanted) in [
            (&[200, 204][..], "delivered"),
            (&[302, 404, 408, 425, 429, 500, 503, 999, 101], "retry"),
            (&[409, 410], "host-closed"),
            (&[400, 401, 403, 405, 413, 422], "refused"),
        ] {
            for code in codes {
                assert_eq!(kind(Purpose::Answer, *code), wanted, "{code}");
            }
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_in_any_of_three_forms() {
        for (value, wanted) in [
            ("0", Some(0)),
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("99999999999999999999999", Some(LONGEST_DELAY_SECONDS)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", Some(60)),
            ("Sun Nov  6 08:49:38 1994", Some(1)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(LONGEST_DELAY_SECONDS)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:00:00 GMT", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            let read = parse_retry_after(value.as_bytes(), Time::from_millis(NOW));
            assert_eq!(read, wanted.map(Duration::from_secs), "{value}");
        }
        assert_eq!(parse_retry_after(&[0xff], Time::from_millis(NOW)), None);
    }

    #[test]
    fn retry_after_is_kept_with_every_retry_and_reasons_name_the_status() {
        for code in [302, 429, 503] {
            let outcome = classify(
                Purpose::Announce,
                StatusCode::from_u16(code).unwrap(),
                Some(b"5"),
                Time::from_millis(NOW),
            );
            let Outcome::Retry { reason, after } = outcome else { panic!("{outcome:?}") };
            assert_eq!(after, Some(Duration::from_secs(5)));
            assert!(reason.starts_with(&format!("HTTP {code} ")), "{reason}");
        }
    }
}
