//! The word that the journal has for each place of a submission queue's table.

/// What is known of one place of a submission queue's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// Nothing was ever in it.
    Unused,
    /// A command in flight, with its number within its queue, from 1, and how many processes it ended. Versions that
    /// know nothing of these read over them.
    InFlight(u64, u16),
    /// A completed command.
    Done(u64),
    /// A command that ended with this status, and whose completion queue could not be reached.
    Parked(u64, u16),
}

impl Word {
    const NUMBER_BITS: u32 = 46;
    const NUMBER: u64 = (1 << Self::NUMBER_BITS) - 1;

    pub fn bits(self) -> u64 {
        let (kind, more, number) = match self {
            Self::Unused => return 0,
            Self::InFlight(number, strikes) => (1, strikes, number),
            Self::Done(number) => (2, 0, number),
            Self::Parked(number, status) => (3, status, number),
        };
        kind << 62 | u64::from(more) << Self::NUMBER_BITS | number & Self::NUMBER
    }

    pub fn of(bits: u64) -> Self {
        let (more, number) = ((bits >> Self::NUMBER_BITS) as u16, bits & Self::NUMBER);
        match bits >> 62 {
            1 => Self::InFlight(number, more),
            2 => Self::Done(number),
            3 => Self::Parked(number, more),
            _ => Self::Unused,
        }
    }

    /// The number of the command; 0: there was none.
    pub fn number(self) -> u64 {
        match self {
            Self::Unused => 0,
            Self::InFlight(number, _) | Self::Done(number) | Self::Parked(number, _) => number,
        }
    }
}
