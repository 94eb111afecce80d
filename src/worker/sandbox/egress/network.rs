//! What runs in a sandbox may reach on the network: everything, nothing, or a list of hosts.

use std::net::IpAddr;

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

use super::allow_list::AllowList;

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Network {
    /// The network of the machine.
    #[default]
    Open,
    /// No network, not even services on this machine.
    Closed,
    /// Only these hosts, through the agent.
    Only(AllowList),
}

impl Network {
    /// Whether runs can reach this internal address, for example one of this machine.
    pub fn reaches(&self, inside: IpAddr, port: u16) -> bool {
        match self {
            Self::Open => true,
            Self::Closed => false,
            Self::Only(list) => list.may_connect(inside, port),
        }
    }

    pub fn allow_list(&self) -> Option<&AllowList> {
        match self {
            Self::Only(list) => Some(list),
            Self::Open | Self::Closed => None,
        }
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct FlagOrList;

        impl<'de> Visitor<'de> for FlagOrList {
            type Value = Network;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, or a list of \"HOST:PORT\"")
            }

            fn visit_bool<E: de::Error>(self, is_open: bool) -> Result<Network, E> {
                Ok(if is_open { Network::Open } else { Network::Closed })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Network, A::Error> {
                let mut entries: Vec<String> = Vec::new();
                while let Some(entry) = list.next_element()? {
                    entries.push(entry);
                }
                AllowList::new(&entries).map(Network::Only).map_err(|why| de::Error::custom(format!("sandbox.network: {why}")))
            }
        }

        from.deserialize_any(FlagOrList)
    }
}
