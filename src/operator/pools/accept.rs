//! Decides which pools the server serves.

use super::pod::Setup;
use super::{Pools, Problem};
use crate::AgentKeys;
use crate::crds::WorkerPool;
use crate::object::Identity;

impl Pools {
    /// The pool with everything that its pods are made from, or the reason why it can't be served.
    pub(super) fn setup<'a>(&self, pool: &'a WorkerPool, identity: &'a Identity) -> Result<Setup<'a>, Problem> {
        let options = &self.context.options;
        let mut namespaces = pool.spec.namespaces.clone();
        if namespaces.is_empty() {
            namespaces.push(identity.namespace.clone());
        }
        namespaces.sort();
        namespaces.dedup();
        let (own, home) = (&identity.namespace, &self.context.namespace);
        // A user who may create pools in one namespace must not be able to read the prompts of another.
        if let Some(foreign) = namespaces.iter().find(|namespace| *namespace != own && own != home) {
            let message = format!(
                "A pool of namespace '{own}' can't run the tasks of namespace '{foreign}': leave spec.namespaces out, or create the pool in \
                 namespace '{home}', where the server runs"
            );
            return Err(Problem::new("ForeignNamespaces", message));
        }
        let served = &options.namespaces;
        if let Some(other) = namespaces.iter().find(|namespace| !served.is_empty() && !served.contains(namespace)) {
            let message = format!("The server does not serve namespace '{other}': add it to its setting OPERATOR_NAMESPACES");
            return Err(Problem::new("NotServed", message));
        }
        let image = pool.spec.image.clone().or_else(|| options.agent_image.clone());
        let no_image = || Problem::new("NoImage", "Set spec.image, or the server's setting OPERATOR_AGENT_IMAGE".into());
        let no_server = "The agents need the URL of the server: set its setting OPERATOR_AGENT_SERVER, or PUBLIC_URL";
        if options.agent_keys == AgentKeys::Impossible {
            let message = "The agents need keys, which need an admin key: set the server's setting RUNTIME_API_KEY".into();
            return Err(Problem::new("NoAdminKey", message));
        }
        Ok(Setup {
            pool,
            identity,
            image: image.ok_or_else(no_image)?,
            server: options.agent_server.clone().ok_or_else(|| Problem::new("NoServer", no_server.into()))?,
            namespaces,
            has_keys: options.agent_keys == AgentKeys::Named,
        })
    }
}
