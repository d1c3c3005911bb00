//! Durations as people and as agent-wait write them, exact to the millisecond.

use crate::json::Decimal;
use std::time::Duration;

/// Why a text is no duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadDuration {
    /// Years and months have no fixed length.
    #[error(
        "names years or months, which have no fixed length; use weeks, days, hours, minutes or seconds"
    )]
    Calendar,
    /// Zero or less.
    #[error("must be longer than zero")]
    NotPositive,
    /// More than can be counted.
    #[error("is too long")]
    TooLong,
    /// None of the forms.
    #[error("is no duration; write one such as \"20s\", \"5m\", \"24h\", \"PT20S\" or \"P3D\"")]
    Malformed,
}

/// The unit letters of the short form, with their milliseconds.
const SHORT: [(&str, u64); 6] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
    ("w", 604_800_000),
];

/// Reads a setting: the short form (`20s`, `1.5h`, `500ms`) or ISO 8601.
///
/// # Errors
/// [`BadDuration`]; zero is refused.
pub fn parse_setting(text: &str) -> Result<Duration, BadDuration> {
    let text = text.trim();
    if text.starts_with(['P', 'p']) {
        return parse_iso(text);
    }
    let split =
        text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(BadDuration::Malformed)?;
    let (number, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let (_, scale) = SHORT.iter().find(|(u, _)| *u == unit).ok_or(BadDuration::Malformed)?;
    positive(part(number, *scale)?)
}

/// Reads agent-wait's ISO 8601 subset: `P[nW][nD][T[nH][nM][nS]]`, any letter case, trimmed, a dot
/// fraction on any part, no sign, no years, no months; the total above zero (wire facts, section 1).
///
/// # Errors
/// [`BadDuration`].
pub fn parse_iso(text: &str) -> Result<Duration, BadDuration> {
    let text = text.trim().to_ascii_uppercase();
    let body = text.strip_prefix('P').ok_or(BadDuration::Malformed)?;
    let (date, time) = match body.split_once('T') {
        Some((_, "")) => return Err(BadDuration::Malformed),
        Some((date, time)) => (date, time),
        None => (body, ""),
    };
    if date.is_empty() && time.is_empty() {
        return Err(BadDuration::Malformed);
    }
    let days = units(date, &[('W', 604_800_000), ('D', 86_400_000)], &['Y', 'M'])?;
    let clock = units(time, &[('H', 3_600_000), ('M', 60_000), ('S', 1_000)], &[])?;
    positive(days.checked_add(clock).ok_or(BadDuration::TooLong)?)
}

/// Reads a number of seconds as JSON has it (`900`, `1.5`, `1e3`). A rest below a millisecond counts
/// as a whole one, as in [`parse_iso`].
///
/// # Errors
/// [`BadDuration`]; zero and negative numbers are refused.
pub fn parse_seconds(number: &str) -> Result<Duration, BadDuration> {
    let Decimal { negative, digits, exponent, .. } = Decimal::of(number);
    if negative || digits.is_empty() {
        return Err(BadDuration::NotPositive);
    }
    // The digits that stand for whole milliseconds. What follows them is above zero, as a decimal
    // ends in no zeros.
    let length = i128::try_from(digits.len()).unwrap_or(i128::MAX);
    let exponent = exponent.saturating_add(3);
    let whole = length.saturating_add(exponent);
    if whole > 20 {
        return Err(BadDuration::TooLong);
    }
    let shown = usize::try_from(whole.clamp(0, length)).unwrap_or(0);
    let zeros = u32::try_from(exponent.clamp(0, 19)).unwrap_or(0);
    let millis = match &digits[..shown] {
        "" => 0,
        shown => shown.parse::<u64>().map_err(|_| BadDuration::TooLong)?,
    };
    millis
        .checked_mul(10_u64.pow(zeros))
        .and_then(|millis| millis.checked_add(u64::from(exponent < 0)))
        .map(Duration::from_millis)
        .ok_or(BadDuration::TooLong)
}

fn positive(millis: u64) -> Result<Duration, BadDuration> {
    if millis == 0 {
        return Err(BadDuration::NotPositive);
    }
    Ok(Duration::from_millis(millis))
}

/// Reads `nX nY …` where the letters come in the order of `letters`, each at most once.
fn units(text: &str, letters: &[(char, u64)], calendar: &[char]) -> Result<u64, BadDuration> {
    let mut rest = text;
    let mut left = letters;
    let mut total = 0_u64;
    while !rest.is_empty() {
        let end =
            rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(BadDuration::Malformed)?;
        let (number, tail) = rest.split_at(end);
        let letter = tail.chars().next().ok_or(BadDuration::Malformed)?;
        if calendar.contains(&letter) {
            return Err(BadDuration::Calendar);
        }
        let at = left.iter().position(|(l, _)| *l == letter).ok_or(BadDuration::Malformed)?;
        let (_, scale) = left[at];
        left = &left[at + 1..];
        total = total.checked_add(part(number, scale)?).ok_or(BadDuration::TooLong)?;
        rest = &tail[letter.len_utf8()..];
    }
    Ok(total)
}

/// `number × scale` milliseconds, without a float in between. A rest below a millisecond counts as
/// a whole one, so that nothing above zero becomes zero.
fn part(number: &str, scale: u64) -> Result<u64, BadDuration> {
    let (whole, fraction) = match number.split_once('.') {
        Some((_, "")) => return Err(BadDuration::Malformed),
        Some((whole, fraction)) => (whole, fraction),
        None => (number, ""),
    };
    if whole.is_empty() || fraction.contains('.') {
        return Err(BadDuration::Malformed);
    }
    let whole: u64 = whole.parse().map_err(|_| BadDuration::TooLong)?;
    let mut millis = whole.checked_mul(scale).ok_or(BadDuration::TooLong)?;
    // Eighteen digits of fraction of a week are far below a nanosecond; more only say "and a bit".
    let (digits, rest) = fraction.split_at(fraction.len().min(18));
    if let Ok(numerator) = digits.parse::<u128>() {
        let exponent = u32::try_from(digits.len()).unwrap_or(18);
        let more = u128::from(rest.bytes().any(|digit| digit != b'0'));
        let scaled = (numerator * u128::from(scale) + more).div_ceil(10_u128.pow(exponent));
        millis = millis
            .checked_add(u64::try_from(scaled).map_err(|_| BadDuration::TooLong)?)
            .ok_or(BadDuration::TooLong)?;
    }
    Ok(millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_as_agent_wait_takes_it() {
        let ms = |text| parse_iso(text).map(|d| d.as_millis());
        assert_eq!(ms("PT15M"), Ok(900_000));
        assert_eq!(ms(" pt15m "), Ok(900_000));
        assert_eq!(ms("P1.5W"), Ok(907_200_000));
        assert_eq!(ms("P0.5DT0.5H"), Ok(45_000_000));
        assert_eq!(ms("P2W3DT1H2M3.25S"), Ok(1_472_523_250));
        assert_eq!(ms("PT0.0000001S"), Ok(1));
        assert_eq!(ms("PT0.00000000000000000000000000001S"), Ok(1));
        assert_eq!(ms("PT1.00000000000000000000000000000S"), Ok(1_000));
        assert_eq!(ms("P1Y2M10DT2H30M"), Err(BadDuration::Calendar));
        assert_eq!(ms("P1M"), Err(BadDuration::Calendar));
        assert_eq!(ms("PT0S"), Err(BadDuration::NotPositive));
        for bad in [
            "", "P", "PT", "P1DT", "1D", "PT1", "PT1.S", "PT.5S", "PT1,5S", "P-1D", "PT1S1H",
            "P٣D", "PT1S2S",
        ] {
            assert_eq!(ms(bad), Err(BadDuration::Malformed), "{bad}");
        }
        assert_eq!(ms("P99999999999999999999W"), Err(BadDuration::TooLong));
    }

    #[test]
    fn settings_take_the_short_form_too() {
        let ms = |text| parse_setting(text).map(|d| d.as_millis());
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("20s"), Ok(20_000));
        assert_eq!(ms("1.5h"), Ok(5_400_000));
        assert_eq!(ms("90d"), Ok(7_776_000_000));
        assert_eq!(ms("P3D"), Ok(259_200_000));
        assert_eq!(ms("20"), Err(BadDuration::Malformed));
        assert_eq!(ms("0s"), Err(BadDuration::NotPositive));
        assert_eq!(ms("5y"), Err(BadDuration::Malformed));
    }

    #[test]
    fn seconds_as_json_numbers() {
        assert_eq!(parse_seconds("1.5").map(|d| d.as_millis()), Ok(1_500));
        assert_eq!(parse_seconds("0"), Err(BadDuration::NotPositive));
        assert_eq!(parse_seconds("-3"), Err(BadDuration::NotPositive));
        assert_eq!(parse_seconds("1e400"), Err(BadDuration::TooLong));
        for (number, millis) in [
            ("900", 900_000),
            ("1e3", 1_000_000),
            ("0.25", 250),
            ("1.001", 1_001),
            ("1.0010", 1_001),
            ("1.0001", 1_001),
            ("0.0001", 1),
            ("1e-400", 1),
            ("1e-99999999999999999999999999999999999999999999", 1),
            ("0.100e1", 1_000),
            ("18446744073709551.615", u128::from(u64::MAX)),
            ("9007199254740.993", 9_007_199_254_740_993),
        ] {
            assert_eq!(parse_seconds(number).map(|d| d.as_millis()), Ok(millis), "{number}");
        }
        for number in ["18446744073709551.616", "18446744073709551.6151", "1e16000000", "1e20"] {
            assert_eq!(parse_seconds(number), Err(BadDuration::TooLong), "{number}");
        }
        for number in ["-1e-400", "0.0", "-0", "0e5"] {
            assert_eq!(parse_seconds(number), Err(BadDuration::NotPositive), "{number}");
        }
    }
}
