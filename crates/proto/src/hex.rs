//! Lower-case hexadecimal digits, used for ids, tokens and certificate hashes.

use alloc::string::String;

/// Encodes each byte as two lower-case digits.
pub fn encode(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    let digits = |byte: &u8| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    bytes.iter().flat_map(digits).collect()
}

/// Decodes exactly `2 * N` digits in either case; `None` for anything else.
pub fn decode<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let digits = digits.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn digits_of_all_bytes_read_back() {
        let bytes = [0, 1, 2, 0x0f, 0x10, 0x9a, 0xab, 0xff];
        assert_eq!(encode(&bytes), "0001020f109aabff");
        assert_eq!(decode(&encode(&bytes)), Some(bytes));
        assert_eq!(decode("ABff"), Some([0xab, 0xff]));
    }

    #[test]
    fn signs_and_other_lengths_are_no_digits() {
        for bad in ["", "01", &"+".repeat(32), &format!("+{}", "1".repeat(31)), &"g".repeat(32)] {
            assert_eq!(decode::<16>(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn only_hex_of_the_right_length_is_taken(text in "\\PC{0,40}") {
            let good = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            prop_assert_eq!(decode::<16>(&text).is_some(), good);
        }
    }
}
