//! What a drive is made of, and the drives that we know.
//!
//! Where the numbers come from: **\[P\]** printed in the source, **\[D\]** derived from printed numbers,
//! **\[F\]** fitted with a queueing model: a starting point to confirm, not evidence.
//!
//! Sources: the LPNS paper (USENIX ATC '23: P5800X and PM1735), the FairNVMe paper (FGCS 2025: DC P3520),
//! the VBMq paper (SM1715), published reviews (DC P3700), data sheets (PM1725a; link rates).
//!
//! Papers print latencies as a host or guest sees them. The LPNS paper's breakdown for the P5800X gives the
//! host's part of an 11.9 µs read as 37.5 % \[P\], 4.46 µs \[D\]. That much is taken off every latency below,
//! because whoever uses the model pays it for real.

/// How pieces of commands find their unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// By address: consecutive stripes on different units, groups of them rotated by a hash. Random
    /// addresses collide, as on real flash.
    Hashed,
    /// The unit that is free first.
    Pooled,
}

/// What happens to writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// They occupy units as reads do and are finished when the medium has them.
    InPlace {
        /// Time in a unit of the first 4 KiB of a piece.
        write_ns: u64,
    },
    /// They are finished when a buffer has them.
    Buffered {
        /// From a command's admission to the buffer to its acknowledgement.
        ack_ns: u64,
        /// Capacity.
        buffer_bytes: u64,
        /// Draining a command's first 4 KiB; every further 4 KiB of it drains at the write link's rate. One
        /// command at a time, so 1 s over this is the sustained rate of 4 KiB random writes.
        drain_ns: u64,
    },
}

/// A drive's parameters. Times in ns, sizes in bytes, rates in MB/s (10⁶ bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// What people call it.
    pub name: &'static str,
    /// Parallel units, at least 1.
    pub units: u32,
    /// How pieces find their unit.
    pub placement: Placement,
    /// Address range that lies on one unit. A multiple of 4096.
    pub stripe_bytes: u64,
    /// Time in a unit for the first 4 KiB of a read piece.
    pub read_ns: u64,
    /// Time in a unit for every further 4 KiB of a piece.
    pub further_ns: u64,
    /// What happens to writes.
    pub writes: Writes,
    /// The controller's time for each command, one after another.
    pub controller_ns: u64,
    /// Latency that every command but a buffered write sees and that occupies nothing.
    pub pipeline_ns: u64,
    /// Rate of the link out of the drive.
    pub link_read_mb_s: u32,
    /// Rate of the link into the drive.
    pub link_write_mb_s: u32,
    /// Commands fetched from one HWQ before the next one's turn. At least 1.
    pub burst: u32,
    /// Commands fetched and not finished, at most. At least 1.
    pub window: u32,
}

impl Profile {
    /// Intel Optane P5800X, 400 GB.
    ///
    /// - units × service: 6 × 7.2 µs \[F\] from 62.5 % of 11.9 µs in the drive \[P\] and 800K to 825K IOPS
    ///   of 4 KiB \[D\]; the rest of the drive's 7.44 µs is the pipeline \[D\].
    /// - reads and writes alike, in place, no garbage collection: the medium's nature \[P\].
    /// - window 256 \[F\]; link 7.2 GB/s \[F\], a PCIe 4.0 ×4 drive's.
    /// - stripe 16 KiB, and 2.13 µs for every 4 KiB beyond the first \[F\]: large commands just fill the link.
    pub const P5800X: Self = Self {
        name: "p5800x",
        units: 6,
        placement: Placement::Hashed,
        stripe_bytes: 16 << 10,
        read_ns: 7_200,
        further_ns: 2_130,
        writes: Writes::InPlace { write_ns: 7_200 },
        controller_ns: 0,
        pipeline_ns: 240,
        link_read_mb_s: 7_200,
        link_write_mb_s: 7_200,
        burst: 1,
        window: 256,
    };

    /// Samsung PM1735, 1.6 TB.
    ///
    /// - 128 × 60 µs \[F\], controller 1.0 µs \[D\] from 1000K read IOPS; pipeline 6.5 µs \[D\]: with the
    ///   host's 4.5 µs a lone read takes the 71.9 µs printed \[P\].
    /// - buffered writes: with host, controller and link a lone write takes the 17.6 µs printed \[P\], so
    ///   11.0 µs \[D\] for the acknowledgement; drains 200K/s \[P\]; buffer of one stripe over all units \[F\].
    /// - link 8.0 / 3.8 GB/s \[P\], its data sheet's; window 1024 \[F\]; 5 µs for every further 4 KiB, a flash channel's
    ///   transfer at 800 MB/s \[F\].
    pub const PM1735: Self = Self {
        name: "pm1735",
        units: 128,
        placement: Placement::Hashed,
        stripe_bytes: 16 << 10,
        read_ns: 60_000,
        further_ns: 5_000,
        writes: Writes::Buffered { ack_ns: 11_000, buffer_bytes: 2 << 20, drain_ns: 5_000 },
        controller_ns: 1_000,
        pipeline_ns: 6_500,
        link_read_mb_s: 8_000,
        link_write_mb_s: 3_800,
        burst: 1,
        window: 1_024,
    };

    /// Intel DC P3520.
    ///
    /// - 36 × 85 µs, controller 3.2 µs \[F\] and pipeline 7.0 µs \[D\]: with the host's part a lone read takes
    ///   99.7 µs (99.94 printed \[P\]).
    /// - buffered writes: 14.75 µs for a lone write with everything \[P\], so 3.6 µs \[D\]; drains at least
    ///   298K/s \[D\], which is not the rate of a drive that collects garbage.
    /// - link 1.7 / 1.2 GB/s \[F\]; at 4 KiB the latter is a little slower than the drain rate. Window 256 \[F\].
    pub const P3520: Self = Self {
        name: "p3520",
        units: 36,
        placement: Placement::Hashed,
        stripe_bytes: 16 << 10,
        read_ns: 85_000,
        further_ns: 5_000,
        writes: Writes::Buffered { ack_ns: 3_600, buffer_bytes: 576 << 10, drain_ns: 3_356 },
        controller_ns: 3_200,
        pipeline_ns: 7_000,
        link_read_mb_s: 1_700,
        link_write_mb_s: 1_200,
        burst: 1,
        window: 256,
    };

    /// Intel DC P3700.
    ///
    /// - 36 × 65 µs, controller 2.2 µs \[F\], pipeline 6.5 µs \[D\]: 78 µs for a lone read with the host's part
    ///   and 167K IOPS at a depth of 16, as reviews print \[P\].
    /// - drains 175K/s, link 2.8 / 1.9 GB/s \[P\], reviews and data sheet; acknowledgement as the P3520's, window 256 \[F\].
    pub const P3700: Self = Self {
        name: "p3700",
        units: 36,
        placement: Placement::Hashed,
        stripe_bytes: 16 << 10,
        read_ns: 65_000,
        further_ns: 5_000,
        writes: Writes::Buffered { ack_ns: 3_600, buffer_bytes: 576 << 10, drain_ns: 5_714 },
        controller_ns: 2_200,
        pipeline_ns: 6_500,
        link_read_mb_s: 2_800,
        link_write_mb_s: 1_900,
        burst: 1,
        window: 256,
    };

    /// Samsung SM1715.
    ///
    /// - controller 1.33 µs and drain rate 130K/s \[D\] from 750K read and 130K write IOPS \[P\].
    /// - 128 × 90 µs \[F\]; pipeline and acknowledgement as the PM1735's \[F\]; link 3.2 / 2.2 GB/s \[F\], since a
    ///   slower one would not carry 750K IOPS of 4 KiB.
    pub const SM1715: Self = Self {
        name: "sm1715",
        units: 128,
        placement: Placement::Hashed,
        stripe_bytes: 16 << 10,
        read_ns: 90_000,
        further_ns: 5_000,
        writes: Writes::Buffered { ack_ns: 11_000, buffer_bytes: 2 << 20, drain_ns: 7_692 },
        controller_ns: 1_333,
        pipeline_ns: 6_500,
        link_read_mb_s: 3_200,
        link_write_mb_s: 2_200,
        burst: 1,
        window: 1_024,
    };

    /// Samsung PM1725a.
    ///
    /// - 16 channels \[P\], taken as 8 units of 80 µs each \[F\]; controller 1.0 µs \[D\] from about 1000K read
    ///   IOPS; drains 180K/s \[P\]; link 6.2 / 2.6 GB/s \[P\].
    /// - pipeline, acknowledgement and window as the PM1735's \[F\].
    pub const PM1725A: Self = Self {
        name: "pm1725a",
        units: 128,
        placement: Placement::Hashed,
        stripe_bytes: 16 << 10,
        read_ns: 80_000,
        further_ns: 5_000,
        writes: Writes::Buffered { ack_ns: 11_000, buffer_bytes: 2 << 20, drain_ns: 5_556 },
        controller_ns: 1_000,
        pipeline_ns: 6_500,
        link_read_mb_s: 6_200,
        link_write_mb_s: 2_600,
        burst: 1,
        window: 1_024,
    };

    /// All of the above.
    pub const ALL: [Self; 6] = [Self::P5800X, Self::PM1735, Self::P3520, Self::P3700, Self::SM1715, Self::PM1725A];

    /// The profile of that [name](Profile::name), in any case.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name.eq_ignore_ascii_case(name))
    }
}
