//! Any datagram is read or refused; what is read is written the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use loquent_proto::frame::Frame;

fuzz_target!(|datagram: &[u8]| {
    let Ok(frame) = Frame::decode(datagram, false) else { return };
    let mut again = Vec::new();
    frame.encode(datagram[0] & 8 != 0, &mut again);
    assert!(again.len() <= datagram.len());
    assert_eq!(Frame::decode(&again, false), Ok(frame));
});
