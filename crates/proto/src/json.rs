//! Minimal JSON for the protocol: writes strings, and splits an object into its members. Values are
//! passed on as written.

use alloc::vec::Vec;

/// Appends `text` as a JSON string (RFC 8259 §7), quotes included.
pub fn put_string(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bytes = text.as_bytes();
    out.push(b'"');
    let mut plain = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[plain..at]);
        plain = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => {
                let digits = [HEX[usize::from(control >> 4)], HEX[usize::from(control & 15)]];
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&digits);
            }
        }
    }
    out.extend_from_slice(&bytes[plain..]);
    out.push(b'"');
}

/// Appends `number` in decimal. Every chunk has two numbers; `core::fmt` would cost more than the
/// rest of the chunk.
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20]; // of u64::MAX
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// Returns the members of the JSON object `text`: names without quotes (escapes are kept) and
/// values as written. `None` if it is not an object.
///
/// Strings and brackets must match; anything between them is not checked.
pub fn members(text: &str) -> Option<Vec<(&str, &str)>> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let mut found = Vec::new();
    let mut rest = inner.trim();
    while !rest.is_empty() {
        let name_end = string_end(rest)?;
        let name = &rest[1..name_end - 1];
        let after = rest[name_end..].trim_start().strip_prefix(':')?;
        let end = value_end(after)?;
        let value = after[..end].trim();
        if value.is_empty() {
            return None;
        }
        found.push((name, value));
        rest = match after[end..].strip_prefix(',') {
            Some(more) if more.trim().is_empty() => return None,
            Some(more) => more.trim_start(),
            None => "",
        };
    }
    Some(found)
}

/// Returns the entries of the JSON list `text`, as written; `None` if it is not a list.
///
/// Like [`members`], checks only that strings and brackets match.
pub fn entries(text: &str) -> Option<Vec<&str>> {
    let inner = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    let (mut found, mut rest) = (Vec::new(), inner);
    while !(found.is_empty() && rest.trim().is_empty()) {
        let end = value_end(rest)?;
        let value = rest[..end].trim();
        if value.is_empty() {
            return None;
        }
        found.push(value);
        match rest[end..].strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    Some(found)
}

/// Returns the end of the string at the front of `text`, quotes included.
fn string_end(text: &str) -> Option<usize> {
    let mut bytes = text.bytes().enumerate();
    if bytes.next()?.1 != b'"' {
        return None;
    }
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()?),
            b'"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Returns the end of the value at the front of `text`: before a comma of this level, or at the
/// end.
fn value_end(text: &str) -> Option<usize> {
    let (mut at, mut depth) = (0, 0u32);
    while at < text.len() {
        match text.as_bytes()[at] {
            b'"' => {
                at += string_end(&text[at..])?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 => return Some(at),
            _ => {}
        }
        at += 1;
    }
    (depth == 0).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_what_serde_writes() {
        for text in ["", "plain", "a\"b\\c\n\r\t\u{1}\u{7f}é🙂", "\u{8}\u{c}"] {
            let mut out = Vec::new();
            put_string(&mut out, text);
            assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text, "{out:?}");
        }
    }

    #[test]
    fn numbers_are_decimal() {
        for number in [0, 7, 10, 99, 100, 4096, u64::MAX] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            assert_eq!(out, number.to_string().as_bytes());
        }
    }

    #[test]
    fn objects_are_cut_into_members() {
        let text = r#" { "a" : {"x":[1,2],"y":"},"} , "b":"\"," ,"c":-1.5e3} "#;
        let expected =
            [("a", r#"{"x":[1,2],"y":"},"}"#), ("b", r#""\",""#), ("c", "-1.5e3")].to_vec();
        assert_eq!(members(text), Some(expected));
        assert_eq!(members("{}"), Some(Vec::new()));
    }

    #[test]
    fn lists_are_cut_into_entries() {
        let expected = [r#""a,]\"""#, "[1,2]", r#"{"x":"}"}"#, "null"];
        let text = r#" ["a,]\"" , [1,2],{"x":"}"}, null ] "#;
        assert_eq!(entries(text), Some(expected.to_vec()));
        assert_eq!(entries("[ ]"), Some(Vec::new()));
        for text in ["", "{}", "[", "[1,]", "[,1]", "[1,,2]", "[\"]", "[[]", "[1]]", "[}]"] {
            assert_eq!(entries(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in
            ["", "[]", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":[}", "{a:1}", "\"x"]
        {
            assert_eq!(members(text), None, "{text}");
        }
    }
}
