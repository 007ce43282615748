//! The form that uploads a file: `multipart/form-data` (RFC 7578).

use bytes::Bytes;

use loquent_serving::error::{ApiError, quoted};

/// Maximum number of parts of a form.
const MAX_PARTS: usize = 16;
/// Maximum bytes of a part's head, and of a part that is no file.
const MAX_HEAD_BYTES: usize = 4096;
/// Maximum length of a boundary (RFC 2046, section 5.1.1).
const MAX_BOUNDARY_BYTES: usize = 70;
/// Bounds of `expires_after[seconds]`, as at OpenAI: an hour to 30 days.
const EXPIRES_AFTER_S: std::ops::RangeInclusive<u64> = 3600..=2_592_000;

/// A file as its client sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// The file's name.
    pub filename: String,
    /// Seconds after which it expires.
    pub expires_after_s: Option<u64>,
    /// Its bytes.
    pub content: Bytes,
}

/// A part of a form.
struct FormPart<'a> {
    name: &'a str,
    filename: Option<&'a str>,
    content: Bytes,
}

/// Reads the form in `body`, whose request has the content type `content_type`.
///
/// # Errors
/// 400 for what is no form, lacks the file, or has another purpose than `batch`.
pub fn read_upload(content_type: &str, body: &Bytes) -> Result<Upload, ApiError> {
    let boundary = boundary_of(content_type).ok_or_else(|| {
        let message = "The body must be a form: send the content type 'multipart/form-data' \
                       with its boundary.";
        ApiError::invalid(message)
    })?;
    let (mut file, mut purpose, mut anchor, mut seconds) = (None, None, None, None);
    for part in parts(body, boundary)? {
        match part.name {
            "file" => {
                let filename = part.filename.unwrap_or("file").to_owned();
                file = Some((filename, part.content));
            }
            "purpose" => purpose = Some(text_of(&part)?),
            "expires_after[anchor]" => anchor = Some(text_of(&part)?),
            "expires_after[seconds]" => seconds = Some(text_of(&part)?),
            // As everywhere, what is unknown has no effect.
            _ => {}
        }
    }
    check_purpose(purpose.as_deref())?;
    let Some((filename, content)) = file else {
        return Err(ApiError::invalid_param("file", "'file' is required."));
    };
    let expires_after_s = expiry(anchor.as_deref(), seconds.as_deref())?;
    Ok(Upload { filename, expires_after_s, content })
}

fn check_purpose(purpose: Option<&str>) -> Result<(), ApiError> {
    match purpose {
        Some("batch") => Ok(()),
        None => Err(ApiError::invalid_param("purpose", "'purpose' is required.")),
        Some(other) => {
            let message = format!("'purpose' must be 'batch', not '{}'.", quoted(other));
            Err(ApiError::invalid_param("purpose", message))
        }
    }
}

fn expiry(anchor: Option<&str>, seconds: Option<&str>) -> Result<Option<u64>, ApiError> {
    if anchor.is_none() && seconds.is_none() {
        return Ok(None);
    }
    let read = seconds.and_then(|text| text.parse().ok());
    let read = read.filter(|seconds| EXPIRES_AFTER_S.contains(seconds));
    match read {
        Some(seconds) if anchor == Some("created_at") => Ok(Some(seconds)),
        _ => {
            let message = format!(
                "'expires_after' needs the anchor 'created_at' and {} to {} seconds.",
                EXPIRES_AFTER_S.start(),
                EXPIRES_AFTER_S.end()
            );
            Err(ApiError::invalid_param("expires_after", message))
        }
    }
}

fn boundary_of(content_type: &str) -> Option<&str> {
    let (kind, rest) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let mut parameters = rest.split(';').filter_map(|one| one.trim().split_once('='));
    let (_, value) = parameters.find(|(name, _)| name.eq_ignore_ascii_case("boundary"))?;
    let boundary = value.trim_matches('"');
    (1..=MAX_BOUNDARY_BYTES).contains(&boundary.len()).then_some(boundary)
}

fn text_of(part: &FormPart<'_>) -> Result<String, ApiError> {
    let text = std::str::from_utf8(&part.content).ok();
    let text = text.filter(|text| text.len() <= MAX_HEAD_BYTES);
    let wrong = || ApiError::invalid_param(part.name, "It must be a short text.");
    text.map(str::to_owned).ok_or_else(wrong)
}

/// Splits a form into its parts, without copying their contents.
fn parts<'a>(body: &'a Bytes, boundary: &str) -> Result<Vec<FormPart<'a>>, ApiError> {
    let broken = || ApiError::invalid("The form in the body is broken or cut off.");
    let first = format!("--{boundary}");
    // A boundary inside a part's content would have to begin a line.
    let between = format!("\r\n{first}");
    let mut at = if body.starts_with(first.as_bytes()) {
        first.len()
    } else {
        find(body, between.as_bytes()).ok_or_else(broken)? + between.len()
    };
    let mut found = Vec::new();
    while !body[at..].starts_with(b"--") {
        if found.len() == MAX_PARTS {
            return Err(ApiError::invalid(format!("The form has more than {MAX_PARTS} parts.")));
        }
        let rest = &body[at..];
        let head_limit = rest.len().min(MAX_HEAD_BYTES);
        let head_end = find(&rest[..head_limit], b"\r\n\r\n").ok_or_else(broken)?;
        let head = std::str::from_utf8(&rest[..head_end]).map_err(|_| broken())?;
        // The end of the head may be the line break before an empty content's boundary.
        let begin = at + head_end + 4;
        let length = find(&body[begin - 2..], between.as_bytes()).ok_or_else(broken)?;
        let end = (begin - 2 + length).max(begin);
        let name = parameter(head, "name").ok_or_else(broken)?;
        let filename = parameter(head, "filename");
        found.push(FormPart { name, filename, content: body.slice(begin..end) });
        at = begin - 2 + length + between.len();
    }
    Ok(found)
}

/// Returns the quoted value of a parameter of the `Content-Disposition` in `head`.
fn parameter<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let is_wanted = |line: &&str| {
        let field = line.split(':').next().unwrap_or_default();
        field.trim().eq_ignore_ascii_case("content-disposition")
    };
    let line = head.split("\r\n").find(is_wanted)?;
    let (_, rest) = line.split_once(&format!("; {name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=b0";

    fn form(parts: &[(&str, &str)]) -> Bytes {
        let mut body = String::new();
        for (disposition, content) in parts {
            body += &format!("--b0\r\nContent-Disposition: form-data; {disposition}\r\n");
            body += &format!("Content-Type: text/plain\r\n\r\n{content}\r\n");
        }
        (body + "--b0--\r\n").into()
    }

    const FILE: (&str, &str) = (r#"name="file"; filename="a;b.jsonl""#, "{}\r\n--b1\n");
    const PURPOSE: (&str, &str) = (r#"name="purpose""#, "batch");

    #[test]
    fn a_form_is_read_as_it_was_written() {
        let anchor = (r#"name="expires_after[anchor]""#, "created_at");
        let seconds = (r#"name="expires_after[seconds]""#, "3600");
        let read = read_upload(TYPE, &form(&[PURPOSE, FILE, anchor, seconds])).unwrap();
        assert_eq!(read.filename, "a;b.jsonl");
        assert_eq!(read.content, FILE.1);
        assert_eq!(read.expires_after_s, Some(3600));
        let empty = (r#"name="file"; filename="e""#, "");
        let quoted = "multipart/form-data; boundary=\"b0\"";
        assert_eq!(read_upload(quoted, &form(&[empty, PURPOSE])).unwrap().content, "");
    }

    #[test]
    fn broken_forms_and_other_purposes_are_refused() {
        let good = form(&[PURPOSE, FILE]);
        assert!(read_upload("application/json", &good).is_err());
        assert!(read_upload("multipart/form-data; boundary=", &good).is_err());
        for end in 0..good.len() - 4 {
            assert!(read_upload(TYPE, &good.slice(..end)).is_err(), "{end}");
        }
        assert!(read_upload(TYPE, &form(&[PURPOSE])).is_err());
        assert!(read_upload(TYPE, &form(&[FILE])).is_err());
        assert!(read_upload(TYPE, &form(&[FILE, (r#"name="purpose""#, "fine-tune")])).is_err());
        let anchor = (r#"name="expires_after[anchor]""#, "created_at");
        let seconds = (r#"name="expires_after[seconds]""#, "3599");
        for wrong in [&[PURPOSE, FILE, anchor][..], &[PURPOSE, FILE, anchor, seconds]] {
            assert!(read_upload(TYPE, &form(wrong)).is_err());
        }
        assert!(read_upload(TYPE, &form(&[FILE, PURPOSE].repeat(9))).is_err(), "too many parts");
    }
}
