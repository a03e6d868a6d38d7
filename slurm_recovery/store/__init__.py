"""The incident store: what was seen, decided and done, kept over restarts. The interface is `store.store.Store`."""
