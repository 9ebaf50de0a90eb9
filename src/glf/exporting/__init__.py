"""A trained backbone as files that other libraries read without this one."""
