use super::*;

const QUEUES: u16 = 4;

fn says(part: Part) -> Lasting {
    Lasting::Says(vec![part])
}

fn ring(ring: u32, part: RingPart) -> Lasting {
    says(Part::Ring(ring, part))
}

fn region(at: u64) -> RegionPayload {
    RegionPayload { guest_addr: at, len_bytes: 4096, user_addr: at, offset_bytes: 0 }
}

fn kept(forget: &[u64]) -> Keeping {
    Keeping { keep: true, forget: forget.to_vec() }
}

fn not_kept(forget: &[u64]) -> Keeping {
    Keeping { keep: false, forget: forget.to_vec() }
}

fn of(request: &Request) -> Lasting {
    Lasting::of(request, QUEUES, |_| true).unwrap()
}

#[test]
fn the_last_word_on_each_part_is_kept() {
    let mut messages = KeptMessages::default();
    assert_eq!(messages.done(1, says(Part::Owner)), kept(&[]));
    assert_eq!(messages.done(2, says(Part::Features)), kept(&[]));
    assert_eq!(messages.done(3, ring(0, RingPart::Call)), kept(&[]));
    assert_eq!(messages.done(4, ring(1, RingPart::Call)), kept(&[]));
    assert_eq!(messages.done(5, ring(0, RingPart::Call)), kept(&[3]));
    assert_eq!(messages.done(6, says(Part::Features)), kept(&[2]));
    assert_eq!(Lasting::of(&Request::GetFeatures, QUEUES, |_| true), None);
    // A ring that does not run isn't stopped.
    assert_eq!(Lasting::of(&Request::GetVringBase { ring: 0 }, QUEUES, |_| false), None);
}

#[test]
fn a_message_about_several_parts_is_kept_until_none_has_its_word() {
    let mut messages = KeptMessages::default();
    let enable = |at| of(&Request::SetVring { ring: at, setting: RingSetting::Enable(1) });
    assert_eq!(messages.done(1, enable(0)), kept(&[]));
    // Without that bit all rings are enabled.
    assert_eq!(messages.done(2, of(&Request::SetFeatures(0))), kept(&[1]));
    // Other features leave them so.
    assert_eq!(messages.done(3, of(&Request::SetFeatures(VHOST_USER_F_PROTOCOL_FEATURES))), kept(&[]));
    assert_eq!(
        (0..3).map(|at| messages.done(4 + u64::from(at), enable(at))).collect::<Vec<_>>(),
        [kept(&[]), kept(&[]), kept(&[])]
    );
    assert_eq!(messages.done(7, enable(3)), kept(&[2]));
    assert_eq!(messages.done(8, of(&Request::SetOwner)), kept(&[]));
    assert_eq!(messages.done(9, of(&Request::ResetOwner)), kept(&[4, 5, 6, 7, 8]));
}

#[test]
fn a_ring_that_was_stopped_is_not_started_and_knows_where_it_was() {
    let mut messages = KeptMessages::default();
    let parts = [RingPart::Num, RingPart::Addr, RingPart::Base, RingPart::Call, RingPart::Kick, RingPart::Enabled];
    (1..).zip(parts).for_each(|(number, part)| drop(messages.done(number, ring(2, part))));
    let stop = || of(&Request::GetVringBase { ring: 2 });
    assert_eq!(messages.done(7, stop()), kept(&[3, 4, 5]));
    assert_eq!(messages.done(8, ring(2, RingPart::Kick)), kept(&[]));
    assert_eq!(messages.done(9, stop()), kept(&[7, 8]));
    assert_eq!(messages.done(10, ring(2, RingPart::Base)), kept(&[9]));
    assert_eq!(messages.done(11, says(Part::ProtocolFeatures)), kept(&[]));
    assert_eq!(messages.done(12, of(&Request::ResetDevice)), not_kept(&[1, 2, 6, 10]));
    assert_eq!(messages.parts.len(), 1);
}

#[test]
fn memory_is_kept_as_long_as_it_is_in_the_table() {
    let mut messages = KeptMessages::default();
    assert_eq!(messages.done(1, Lasting::Adds(region(0))), kept(&[]));
    assert_eq!(messages.done(2, Lasting::Table(vec![region(0), region(4096)])), kept(&[1]));
    assert_eq!(messages.done(3, Lasting::Adds(region(8192))), kept(&[]));
    // Taken out of the table, then in place of that memory some that was added.
    assert_eq!(messages.done(4, Lasting::Removes(region(0))), kept(&[]));
    assert_eq!(messages.done(5, Lasting::Adds(region(0))), kept(&[]));
    assert_eq!(messages.done(6, Lasting::Removes(region(0))), not_kept(&[5]));
    assert_eq!(messages.done(7, Lasting::Removes(region(4096))), not_kept(&[2, 4]));
    assert_eq!(messages.done(8, Lasting::Table(vec![region(0)])), kept(&[3]));
}

#[test]
fn no_more_is_kept_than_there_are_parts_however_often_a_client_speaks() {
    let mut messages = KeptMessages::default();
    let mut numbers = BTreeSet::new();
    let mut random = 1_u64;
    for number in 0..20_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (what, at) = (random >> 33, (random >> 40) as u32 % u32::from(QUEUES));
        let keeping = match what % 9 {
            0 => messages.done(number, ring(at, RingPart::Call)),
            1 => messages.done(number, ring(at, RingPart::Kick)),
            2 => messages.done(number, of(&Request::GetVringBase { ring: at })),
            3 => messages.done(number, of(&Request::SetFeatures(0))),
            4 => messages.done(number, of(&Request::SetVring { ring: at, setting: RingSetting::Enable(0) })),
            5 => messages.done(number, of(&Request::ResetOwner)),
            6 if what % 50 == 6 => messages.done(number, of(&Request::ResetDevice)),
            6 | 7 if messages.added.len() < 8 => messages.done(number, Lasting::Adds(region(random & !4095))),
            7 => {
                let (_, added) = messages.added[at as usize];
                messages.done(number, Lasting::Removes(added))
            }
            _ => messages.done(number, Lasting::Table((0..u64::from(at)).map(region).collect())),
        };
        keeping.forget.iter().for_each(|number| assert!(numbers.remove(number), "{number} is not kept"));
        if keeping.keep {
            numbers.insert(number);
        }
        assert!(numbers.len() <= 2 + 7 * usize::from(QUEUES) + 1 + 8, "{}", numbers.len());
    }
    // All that it believes to be kept is.
    let table = messages.table.iter().map(|table| table.number);
    let theirs: BTreeSet<u64> =
        messages.parts.values().copied().chain(messages.added.iter().map(|(number, _)| *number)).chain(table).collect();
    assert_eq!(theirs, numbers);
}
