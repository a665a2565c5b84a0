//! A 64-bit reference for 8-bit products, and where their values are drawn from.

use azulejo_amx::MatRef;
use azulejo_amx::int8::{Byte, Per, ZeroPoints};

use super::Random;

/// Where bytes are drawn from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Values {
    /// All bytes alike.
    Any,
    /// The ends of the range and their neighbours, where a sum of two products leaves 16 bits.
    Extreme,
    /// The greatest value.
    Most,
    /// The least value.
    Least,
}

impl Values {
    pub(crate) fn byte<T: Byte>(self, random: &mut Random) -> T {
        let (least, most) = T::RANGE;
        let pick = random.next();
        let value = match self {
            Self::Any => least + (pick % 256) as i32,
            Self::Extreme => [least, most, least + 1, most - 1, 0, 1][pick as usize % 6],
            Self::Most => most,
            Self::Least => least,
        };
        bytemuck::cast(value.to_le_bytes()[0])
    }
}

fn at(zero: &Per<'_, i32>, i: usize) -> i64 {
    match zero {
        Per::Tensor(value) => i64::from(*value),
        Per::Channel(values) => i64::from(values[i]),
    }
}

/// `(a - za) (b - zb)` in 64 bits, of which the low 32 are kept.
pub(crate) fn oracle<A: Byte + Into<i64>>(a: MatRef<'_, A>, b: MatRef<'_, i8>, zero: &ZeroPoints<'_>) -> Vec<i32> {
    let (m, k) = a.shape();
    let n = b.cols();
    let mut c = Vec::with_capacity(m * n);
    for i in 0..m {
        let row: Vec<i64> = (0..k).map(|p| a.at(i, p).into() - at(&zero.a, i)).collect();
        for j in 0..n {
            let zb = at(&zero.b, j);
            let sum: i64 = row
                .iter()
                .enumerate()
                .map(|(p, a)| a * (i64::from(b.at(p, j)) - zb))
                .sum();
            c.push(sum as i32);
        }
    }
    c
}
