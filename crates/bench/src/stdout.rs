//! Standard output, whose reader may leave before the end, as `| head` does.

use std::io::{self, ErrorKind, Write};

use crate::BenchError;

/// Writes `text` to standard output. `print!` would panic without a reader.
///
/// # Errors
/// [`BenchError::Output`], but not if the reader has gone away: it wanted no more.
pub fn print(text: impl AsRef<[u8]>) -> Result<(), BenchError> {
    print_to(io::stdout().lock(), text.as_ref())
}

fn print_to(mut out: impl Write, text: &[u8]) -> Result<(), BenchError> {
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(BenchError::Output { path: "standard output".into(), reason: error.to_string() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn only_a_reader_may_leave() {
        print_to(Failing(ErrorKind::BrokenPipe), b"text").unwrap();
        let full = print_to(Failing(ErrorKind::StorageFull), b"text").unwrap_err().to_string();
        assert!(full.starts_with("cannot write standard output: "), "{full}");
    }
}
