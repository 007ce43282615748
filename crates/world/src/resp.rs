//! Redis's protocol (RESP2), as far as the store's client speaks it.

use script_model::RedisReply;

/// Takes the first whole command from `bytes`: its words.
///
/// # Panics
/// When the bytes are no commands.
pub fn take_command(bytes: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut at = 0;
    let words = number(bytes, &mut at, b'*')?;
    let mut command = Vec::with_capacity(words);
    for _ in 0..words {
        let len = number(bytes, &mut at, b'$')?;
        command.push(bytes.get(at..at + len)?.to_vec());
        at += len + 2;
    }
    if at > bytes.len() {
        // The line's end is still missing.
        return None;
    }
    bytes.drain(..at);
    Some(command)
}

/// Reads a line with a number behind `kind`; `None` if it is not whole yet.
fn number(bytes: &[u8], at: &mut usize, kind: u8) -> Option<usize> {
    let rest = bytes.get(*at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    assert_eq!(rest[0], kind, "the client speaks RESP");
    *at += end + 2;
    std::str::from_utf8(&rest[1..end]).ok()?.parse().ok()
}

/// Appends `reply` to `out`.
pub fn put_reply(reply: &RedisReply, out: &mut Vec<u8>) {
    match reply {
        RedisReply::Nil => out.extend_from_slice(b"$-1\r\n"),
        RedisReply::Int(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        RedisReply::Bulk(bytes) => {
            out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
        }
        RedisReply::List(replies) => {
            out.extend_from_slice(format!("*{}\r\n", replies.len()).as_bytes());
            replies.iter().for_each(|reply| put_reply(reply, out));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_taken_once_they_are_whole() {
        let whole = b"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n*1\r\n$4\r\nPING\r\n";
        let mut bytes = Vec::new();
        let mut taken = Vec::new();
        for byte in whole {
            bytes.push(*byte);
            taken.extend(take_command(&mut bytes));
        }
        assert_eq!(taken, [vec![b"GET".to_vec(), b"\r\n".to_vec()], vec![b"PING".to_vec()]]);
        assert!(bytes.is_empty());
    }

    #[test]
    fn replies_are_written_as_the_client_reads_them() {
        let reply = RedisReply::List(vec![RedisReply::Nil, RedisReply::Bulk(b"a".to_vec())]);
        let mut out = Vec::new();
        put_reply(&RedisReply::Int(-7), &mut out);
        put_reply(&reply, &mut out);
        assert_eq!(out, b":-7\r\n*2\r\n$-1\r\n$1\r\na\r\n");
    }
}
