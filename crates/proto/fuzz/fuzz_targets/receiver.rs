//! A receiver that hears anything at any time neither panics nor stays busy.
#![no_main]

use libfuzzer_sys::fuzz_target;
use loquent_proto::{Micros, Receiver, ReceiverConfig, ReceiverEvent};

fuzz_target!(|input: &[u8]| {
    let mut receiver = Receiver::new(Micros(0), 1, 0, ReceiverConfig::default());
    let (mut now, mut complete) = (Micros(0), 0);
    // Each datagram: wait in 10 ms (one byte), length (one), bytes.
    let mut rest = input;
    while let [wait, len, tail @ ..] = rest {
        let (datagram, after) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = after;
        now += Micros::from_ms(u64::from(*wait) * 10);
        let _ = receiver.handle_datagram(now, datagram);
        receiver.handle_timeout(now);
        while let Some(event) = receiver.poll_event() {
            complete += u32::from(event == ReceiverEvent::Complete);
        }
        let mut sent = 0;
        while receiver.poll_transmit(now, &mut Vec::new()).is_some() {
            sent += 1;
        }
        assert!(sent <= 2 && complete <= 1);
        assert!(receiver.poll_timeout().is_none_or(|at| at > now));
    }
});
