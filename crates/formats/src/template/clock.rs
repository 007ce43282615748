//! `strftime_now` for a given time, in UTC.

/// Formats `unix_s` seconds since 1970 by the codes of C's `strftime` that are needed for dates;
/// other codes are kept unchanged.
pub(super) fn strftime(format: &str, unix_s: i64) -> String {
    let time = Civil::at(unix_s);
    let mut text = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        match rest.next() {
            Some('-') => match rest.next() {
                Some(code) => text.push_str(unpadded(&time.field(code))),
                None => text.push_str("%-"),
            },
            Some(code) => text.push_str(&time.field(code)),
            None => text.push('%'),
        }
    }
    text
}

/// A field without the zeros or spaces before it; a number keeps its last digit.
fn unpadded(field: &str) -> &str {
    let short = field.trim_start_matches(['0', ' ']);
    if short.is_empty() { &field[field.len().saturating_sub(1)..] } else { short }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A time in the Gregorian calendar.
struct Civil {
    year: i64,
    month: usize,
    day: i64,
    /// Seconds of the day.
    second: i64,
    /// Days since Sunday.
    weekday: usize,
}

impl Civil {
    fn at(unix_s: i64) -> Self {
        let (days, second) = (unix_s.div_euclid(86_400), unix_s.rem_euclid(86_400));
        // Years begin in March here, so that the leap day is a year's last: month
        // lengths then follow (153 m + 2) / 5. Eras are 400 years, 146,097 days.
        let shifted = days + 719_468;
        let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let march_month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * march_month + 2) / 5 + 1;
        let month = (march_month + 2) % 12;
        let year = year + era * 400 + i64::from(march_month >= 10);
        let weekday = (days + 4).rem_euclid(7) as usize;
        Self { year, month: month as usize, day, second, weekday }
    }

    fn field(&self, code: char) -> String {
        let Self { year, month, day, second, weekday } = *self;
        let date = |month: usize| format!("{year}-{month:02}-{day:02}");
        match code {
            'Y' => year.to_string(),
            'y' => format!("{:02}", year.rem_euclid(100)),
            'm' => format!("{:02}", month + 1),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'B' => MONTHS[month].to_owned(),
            'b' => MONTHS[month][..3].to_owned(),
            'A' => DAYS[weekday].to_owned(),
            'a' => DAYS[weekday][..3].to_owned(),
            'H' => format!("{:02}", second / 3600),
            'I' => format!("{:02}", (second / 3600 + 11) % 12 + 1),
            'p' => if second < 43_200 { "AM" } else { "PM" }.to_owned(),
            'M' => format!("{:02}", second / 60 % 60),
            'S' => format!("{:02}", second % 60),
            'F' => date(month + 1),
            '%' => "%".to_owned(),
            other => format!("%{other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Known dates (from `date -u -d @N`).
    use super::*;

    #[test]
    fn formats_known_times() {
        for (unix_s, format, text) in [
            (0, "%d %b %Y", "01 Jan 1970"),
            (951_782_400, "%A, %B %-d, %Y", "Tuesday, February 29, 2000"),
            (1_735_689_599, "%F %H:%M:%S %p %I", "2024-12-31 23:59:59 PM 11"),
            (4_107_542_400, "%a %y-%m-%d", "Mon 00-03-01"),
            (-1, "%Y%%%q%", "1969%%q%"),
            (432_000, "%-H:%-M o'clock, %-e %B", "0:0 o'clock, 6 January"),
        ] {
            assert_eq!(strftime(format, unix_s), text);
        }
    }
}
