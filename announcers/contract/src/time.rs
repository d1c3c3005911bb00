//! Instants as whole milliseconds, so that they sort and compare as numbers in every store.

use jiff::civil::{self, DateTime};
use jiff::tz::Offset;
use std::fmt;
use std::time::Duration;

const MS_PER_DAY: i64 = 86_400_000;

/// An instant: milliseconds since 1970-01-01T00:00:00Z. Displays as RFC 3339 in UTC with
/// milliseconds.
///
/// Covers the years 0000 to 9999, of which jiff's own timestamp lacks the last day.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(i64);

/// Why a text is no instant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTime {
    /// A date and time, but nothing that ties it to UTC.
    #[error("has no offset from UTC; append Z or an offset such as +02:00")]
    NoOffset,
    /// Not of the RFC 3339 form.
    #[error("is not an RFC 3339 time such as 2026-09-14T09:00:00Z")]
    Malformed,
}

impl Time {
    /// The largest instant that can be written with four digits of year.
    pub const MAX: Self = Self(253_402_300_799_999);
    /// The smallest instant that can be written.
    pub const MIN: Self = Self(-62_167_219_200_000);

    /// From milliseconds since 1970, held within [`Time::MIN`] and [`Time::MAX`].
    #[must_use]
    pub fn from_millis(millis: i64) -> Self {
        Self(millis.clamp(Self::MIN.0, Self::MAX.0))
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub fn millis(self) -> i64 {
        self.0
    }

    /// Seconds since 1970, rounded down.
    #[must_use]
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// Later by `by`; ends at [`Time::MAX`].
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        Self::from_millis(self.0.saturating_add(by))
    }

    /// Earlier by `by`; ends at [`Time::MIN`].
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        Self::from_millis(self.0.saturating_sub(by))
    }

    /// How long until `later`; zero when that is past.
    #[must_use]
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }

    /// Reads an RFC 3339 instant; `None` for a year past 9999, which agent-wait can write and
    /// which means never.
    ///
    /// The offset is required, also past the year 9999. A fraction finer than a millisecond is cut
    /// off. `24:00` and a leap second are refused: jiff would move them to another instant.
    ///
    /// # Errors
    /// [`BadTime`] says what is missing.
    pub fn parse(text: &str) -> Result<Option<Self>, BadTime> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 4 && !text.starts_with('0') {
            // All but the size of the year is checked as ever, under its last four digits: years
            // that are whole 10,000s apart have the same days.
            return Self::parse(&text[digits - 4..]).map(|_| None);
        }
        let (date, rest) = text.split_at_checked(10).ok_or(BadTime::Malformed)?;
        let time = rest.strip_prefix(['T', 't', ' ']).ok_or(BadTime::Malformed)?;
        let split = time.find(['Z', 'z', '+', '-']);
        let (clock, offset) = time.split_at(split.unwrap_or(time.len()));
        let at = civil_datetime(date, clock).ok_or(BadTime::Malformed)?;
        if split.is_none() {
            return Err(BadTime::NoOffset);
        }
        let offset = parse_offset(offset).ok_or(BadTime::Malformed)?;
        let local = millis_of(at).ok_or(BadTime::Malformed)?;
        let utc = local - i64::from(offset.seconds()) * 1_000;
        Ok((utc <= Self::MAX.0).then(|| Self::from_millis(utc)))
    }
}

/// `YYYY-MM-DD` and `HH:MM:SS[.fraction]`, shape checked by hand because jiff's own parser takes
/// many more spellings.
fn civil_datetime(date: &str, clock: &str) -> Option<DateTime> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = *date.as_bytes() else {
        return None;
    };
    let (whole, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [h1, h2, b':', n1, n2, b':', s1, s2] = *whole.as_bytes() else {
        return None;
    };
    if fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number = |digits: &[u8]| {
        digits
            .iter()
            .try_fold(0_i16, |n, d| d.is_ascii_digit().then(|| n * 10 + i16::from(d - b'0')))
    };
    let small = |digits: &[u8]| number(digits).and_then(|n| i8::try_from(n).ok());
    let millis = fraction
        .bytes()
        .chain(std::iter::repeat(b'0'))
        .take(3)
        .fold(0_i32, |n, d| n * 10 + i32::from(d - b'0'));
    DateTime::new(
        number(&[y1, y2, y3, y4])?,
        small(&[m1, m2])?,
        small(&[d1, d2])?,
        small(&[h1, h2])?,
        small(&[n1, n2])?,
        small(&[s1, s2])?,
        millis * 1_000_000,
    )
    .ok()
}

fn parse_offset(text: &str) -> Option<Offset> {
    if text.eq_ignore_ascii_case("z") {
        return Some(Offset::UTC);
    }
    let [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] = *text.as_bytes() else {
        return None;
    };
    let two = |a: u8, b: u8| {
        (a.is_ascii_digit() && b.is_ascii_digit())
            .then(|| i32::from(a - b'0') * 10 + i32::from(b - b'0'))
    };
    let (hours, minutes) = (two(h1, h2)?, two(m1, m2)?);
    if hours > 23 || minutes > 59 {
        return None;
    }
    let seconds = (hours * 60 + minutes) * 60;
    Offset::from_seconds(if sign == b'-' { -seconds } else { seconds }).ok()
}

fn millis_of(at: DateTime) -> Option<i64> {
    let since =
        at.date().since(civil::date(1970, 1, 1)).ok().map(|span| i64::from(span.get_days()))?;
    let t = at.time();
    let seconds = (i64::from(t.hour()) * 60 + i64::from(t.minute())) * 60 + i64::from(t.second());
    Some(since * MS_PER_DAY + seconds * 1_000 + i64::from(t.millisecond()))
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0.div_euclid(MS_PER_DAY);
        let in_day = self.0.rem_euclid(MS_PER_DAY);
        let date = civil::date(1970, 1, 1)
            .checked_add(jiff::Span::new().days(days))
            .unwrap_or(civil::Date::MAX);
        let (seconds, millis) = (in_day / 1_000, in_day % 1_000);
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
            date.year(),
            date.month(),
            date.day(),
            seconds / 3_600,
            seconds / 60 % 60,
            seconds % 60,
            millis
        )
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Time({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        match Time::parse(text) {
            Ok(Some(t)) => t.to_string(),
            Ok(None) => "never".to_owned(),
            Err(BadTime::NoOffset) => "no offset".to_owned(),
            Err(BadTime::Malformed) => "malformed".to_owned(),
        }
    }

    #[test]
    fn rfc_3339_is_read_as_written() {
        assert_eq!(read("2026-09-14T09:00:00Z"), "2026-09-14T09:00:00.000Z");
        assert_eq!(read("2026-09-14t09:00:00.1239z"), "2026-09-14T09:00:00.123Z");
        assert_eq!(read("2026-09-14T09:00:00+02:30"), "2026-09-14T06:30:00.000Z");
        assert_eq!(read("1969-12-31T23:59:59.5Z"), "1969-12-31T23:59:59.500Z");
        assert_eq!(read("9999-12-31T23:59:59Z"), "9999-12-31T23:59:59.000Z");
        assert_eq!(read("0001-01-01T00:00:00Z"), "0001-01-01T00:00:00.000Z");
    }

    #[test]
    fn past_the_year_9999_is_never() {
        assert_eq!(read("10000-01-01T00:00:00Z"), "never");
        assert_eq!(read("10240-08-20T13:56:04Z"), "never");
        assert_eq!(read("12000-02-29T00:00:00+02:00"), "never");
        assert_eq!(read("123456789012-01-01T00:00:00Z"), "never");
        assert_eq!(read("9999-12-31T23:59:59-01:00"), "never");
    }

    #[test]
    fn everything_else_is_refused_with_the_reason() {
        assert_eq!(read("2026-09-14T09:00:00"), "no offset");
        assert_eq!(read("10240-08-20T13:56:04"), "no offset");
        for bad in [
            "10240-08-20",
            "10240-13-20T13:56:04Z",
            "12001-02-29T00:00:00Z",
            "10240-garbage",
            "02026-09-14T09:00:00Z",
            "999-09-14T09:00:00Z",
            "-2026-09-14T09:00:00Z",
            "+2026-09-14T09:00:00Z",
            "",
            "2026-09-14",
            "2026-09-14T09:00Z",
            "2026-09-14T24:00:00Z",
            "2026-13-14T09:00:00Z",
            "2026-09-14T09:00:60Z",
            "20260914T090000Z",
            "2026-09-14T09:00:00.Z",
            "2026-09-14T09:00:00+2",
            "2026-09-14T09:00:00+24:00",
            "2026-09-14T09:00:00Zz",
            "2026-02-30T09:00:00Z",
            "3 days",
            "½026-09-14T09:00:00Z",
        ] {
            assert_eq!(read(bad), "malformed", "{bad}");
        }
    }

    #[test]
    fn the_extremes_can_be_written() {
        assert_eq!(Time::MAX.to_string(), "9999-12-31T23:59:59.999Z");
        assert_eq!(Time::MIN.to_string(), "0000-01-01T00:00:00.000Z");
    }
}
