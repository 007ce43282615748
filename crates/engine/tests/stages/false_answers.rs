//! A last stage that answers what it was not asked: the session is lost and opened again, and its
//! answers go on.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use loquent_engine::staged::wire::{Done, RowFormat, StageMessage};
use loquent_engine::staged::{Cluster, Dtype};
use loquent_infer::request::Work;
use loquent_infer::runner::Sampled;

use super::toy::{self, Site, VOCAB, WIDTH, options};
use super::{generate, generate_through_losses, work};

/// Answers of batches that pass before the false one: every sequence is in the midst of its text.
const TRUE_ANSWERS: usize = 12;

#[derive(Debug, Clone, Copy)]
enum Lie {
    LeavesOutARow,
    AddsARow,
    InventsAToken,
}

impl Lie {
    fn tell(self, rows: &mut Vec<Sampled>) {
        match self {
            Self::LeavesOutARow => drop(rows.pop()),
            Self::AddsARow => rows.push(rows[0].clone()),
            Self::InventsAToken => rows[0].outcome.as_mut().expect("a token").token = VOCAB,
        }
    }
}

/// Passes on what comes to and from the stage at `stage`, but for one answer, in which it lies.
/// Returns its own address.
fn liar(stage: String, lie: Lie) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answers = Arc::new(AtomicUsize::new(0));
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            // Refused once the test has ended.
            let Ok(far) = TcpStream::connect(&stage) else { return };
            let (mut up, mut down) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || {
                let _ = io::copy(&mut up, &mut down);
                let _ = down.shutdown(Shutdown::Both);
            });
            let answers = answers.clone();
            thread::spawn(move || {
                let _ = pass_frames(far, &near, lie, &answers);
                let _ = near.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

fn pass_frames(
    mut from: TcpStream,
    mut to: &TcpStream,
    lie: Lie,
    answers: &AtomicUsize,
) -> io::Result<()> {
    let format = RowFormat { dtype: Dtype::F32, width: WIDTH, batch_tokens: 128 };
    loop {
        let mut frame = vec![0; 4];
        from.read_exact(&mut frame)?;
        let len = u32::from_le_bytes(frame[..].try_into().unwrap()) as usize;
        frame.resize(4 + len, 0);
        from.read_exact(&mut frame[4..])?;
        if let Ok(StageMessage::Done(Done { id, timings, outcome: Ok(mut rows) })) =
            StageMessage::decode(&frame[4..], &format)
            && !rows.is_empty()
            && answers.fetch_add(1, Ordering::Relaxed) == TRUE_ANSWERS
        {
            lie.tell(&mut rows);
            frame.clear();
            StageMessage::Done(Done { id, timings, outcome: Ok(rows) }).encode(&format, &mut frame);
        }
        to.write_all(&frame)?;
    }
}

#[test]
fn answers_go_on_in_a_new_session_after_a_false_one() {
    let works: Vec<Work> = (0..4).map(work).collect();
    let site = Site::start(2);
    let expected = generate(&mut site.runner(), &works, 2);
    for lie in [Lie::LeavesOutARow, Lie::AddsARow, Lie::InventsAToken] {
        let site = Site::start(2);
        let mut wanted = options();
        wanted.addresses = site.addresses();
        wanted.addresses[1] = liar(wanted.addresses[1].clone(), lie);
        let cluster = Cluster::connect(wanted, |why| eprintln!("waiting: {why}")).unwrap();
        let mut runner = toy::runner(&cluster);
        let (generated, losses) = generate_through_losses(&mut runner, &works, 2);
        assert_eq!(losses, 1, "{lie:?}");
        assert_eq!(generated, expected, "{lie:?}");
        cluster.stop();
    }
}
